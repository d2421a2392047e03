package io.towa.graph;

import java.util.Arrays;

/** A stack of positions in the pool. */
final class Positions {
    private long[] values = new long[256];
    private int size;

    boolean isEmpty() {
        return size == 0;
    }

    void push(long v) {
        if (size == values.length) {
            values = Arrays.copyOf(values, 2 * size);
        }
        values[size++] = v;
    }

    long pop() {
        return values[--size];
    }
}
