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
    private static final int MOST = 64;

    /** Positions of the first replicas, and cycles that each has seen; both are replaced, and never changed. */
    private static volatile long[] positions = {};
    private static int[] cycles = {};

    private Unlinked() {}

    /** Inside the gate: the graph whose first replica is at {@code at} is durable, and not linked yet. If too many are, the oldest is given up. */
    static synchronized void add(long at) {
        int from = positions.length == MOST ? 1 : 0;
        int n = positions.length - from;
        long[] more = Arrays.copyOfRange(positions, from, from + n + 1);
        cycles = Arrays.copyOfRange(cycles, from, from + n + 1);
        more[n] = at;
        cycles[n] = 0;
        positions = more;
    }

    /** Inside the gate: a reference to the replica at {@code at} is about to be stored. */
    static void linked(long at) {
        long[] all = positions;
        for (int i = 0; i < all.length; i++) {
            if (all[i] == at) {
                remove(at);
                return;
            }
        }
    }

    private static synchronized void remove(long at) {
        long[] left = new long[positions.length];
        int[] seen = new int[positions.length];
        int n = 0;
        for (int i = 0; i < left.length; i++) {
            if (positions[i] != at) {
                left[n] = positions[i];
                seen[n++] = cycles[i];
            }
        }
        cycles = Arrays.copyOf(seen, n);
        positions = Arrays.copyOf(left, n);
    }

    /** The first replicas of all. */
    static long[] positions() {
        return positions;
    }

    /** With the gate shut: a cycle has ended that held them. */
    static synchronized void cycleEnded() {
        long[] all = positions;
        for (int i = 0; i < all.length; i++) {
            cycles[i]++;
        }
        for (int i = 0; i < positions.length;) {
            if (cycles[i] >= CYCLES) {
                remove(positions[i]);
            } else {
                i++;
            }
        }
    }

    /** The pool is another one. */
    static synchronized void clear() {
        positions = new long[0];
        cycles = new int[0];
    }
}
