package io.towa.graph;

import jdk.internal.misc.Unsafe;

/** Counts what many threads do. By Unsafe alone: the JDK's adders are woven, and would pass barriers of their own, at every store. */
final class Counter {
    private static final Unsafe U = Unsafe.getUnsafe();
    private static final int STRIPES = 16;
    /** Longs between two counters. */
    private static final int APART = 16;

    private final long[] counts = new long[(STRIPES + 1) * APART];

    private static long offset(int stripe) {
        return Unsafe.ARRAY_LONG_BASE_OFFSET + 8L * APART * (stripe + 1);
    }

    void add(long n) {
        U.getAndAddLong(counts, offset((int) Thread.currentThread().threadId() & STRIPES - 1), n);
    }

    long sum() {
        long sum = 0;
        for (int i = 0; i < STRIPES; i++) {
            sum += U.getLongVolatile(counts, offset(i));
        }
        return sum;
    }
}
