package io.towa.graph;

import jdk.internal.misc.Unsafe;

/** Locks of replicas, by position: taken for a copy, and for volatile and atomic stores. Whoever holds one waits for nobody. */
final class Stripes {
    private static final int COUNT = 1024;
    private static final Unsafe U = Unsafe.getUnsafe();
    /** 64 bytes apart. By Unsafe alone: the JDK's atomics are woven, and would pass barriers of their own. */
    private static final int[] HELD = new int[COUNT * 16];

    private Stripes() {}

    static int lock(long position) {
        int stripe = (int) ((position >>> 4) * 0x9E3779B97F4A7C15L >>> 54);
        for (int spins = 1; !U.compareAndSetInt(HELD, offset(stripe), 0, 1); spins++) {
            if (spins % 100 == 0) {
                Thread.yield();
            } else {
                Thread.onSpinWait();
            }
        }
        return stripe;
    }

    static void unlock(int stripe) {
        U.putIntRelease(HELD, offset(stripe), 0);
    }

    private static long offset(int stripe) {
        return Unsafe.ARRAY_INT_BASE_OFFSET + (long) stripe * 16 * Unsafe.ARRAY_INT_INDEX_SCALE;
    }
}
