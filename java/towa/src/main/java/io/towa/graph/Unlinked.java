package io.towa.graph;

import java.util.Arrays;

/**
 * Large graphs that have become durable ahead of the store that will link them. A barrier promotes before the store to DRAM, and leaves the gate: a cycle of the collector
 * in between would free the graph, and it would be promoted once more. So these graphs are roots of the collector until they are linked.
 *
 * <p>Always true: a graph is held through two cycles at most, for its store may never come (an exception in between). Small graphs are not held: to promote one twice
 * costs less than to remember each.
 */
final class Unlinked {
    /** From so many objects on a graph is large. */
    static final int LARGE = 1024;
    private static final int CYCLES = 2;

    private static long[] positions = new long[4];
    private static int[] cycles = new int[4];
    private static volatile int count;

    private Unlinked() {}

    /** Inside the gate: the graph whose first replica is at {@code at} is durable, and not linked yet. */
    static synchronized void add(long at) {
        if (count == positions.length) {
            positions = Arrays.copyOf(positions, 2 * count);
            cycles = Arrays.copyOf(cycles, 2 * count);
        }
        positions[count] = at;
        cycles[count] = 0;
        count++;
    }

    /** Inside the gate: a reference to the replica at {@code at} is about to be stored. */
    static void linked(long at) {
        if (count != 0) {
            remove(at);
        }
    }

    private static synchronized void remove(long at) {
        int left = 0;
        for (int i = 0; i < count; i++) {
            if (positions[i] != at) {
                positions[left] = positions[i];
                cycles[left] = cycles[i];
                left++;
            }
        }
        count = left;
    }

    /** With the gate shut: the first replicas of all. */
    static synchronized long[] positions() {
        return Arrays.copyOf(positions, count);
    }

    /** With the gate shut: a cycle has ended that held them. */
    static synchronized void cycleEnded() {
        for (int i = count - 1; i >= 0; i--) {
            if (++cycles[i] == CYCLES) {
                remove(positions[i]);
            }
        }
    }

    /** The pool is another one. */
    static synchronized void clear() {
        count = 0;
    }
}
