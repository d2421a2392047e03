package io.towa.graph;

import jdk.internal.misc.Unsafe;

/** Locks of replicas, by position: taken for a copy, and for volatile and atomic stores. Whoever holds one waits for nobody. */
final class Stripes {
    private static final int COUNT = 1024;
    private static final Unsafe U = Unsafe.getUnsafe();
    /** 64 bytes apart. By Unsafe alone: the JDK's atomics are woven, and would pass barriers of their own. */
    private static final int[] HELD = new int[COUNT * 16];

    /** The store that the holder of a stripe is about to do, replica first. */
    static final class Pending {
        /** null: none. */
        Object o;
        long offset;
        /** The object's, when its replica was stored to. */
        long word;
        long at;
        int bytes;
        boolean reference;
    }

    private static final Pending[] PENDING = new Pending[COUNT];

    static {
        for (int i = 0; i < COUNT; i++) {
            PENDING[i] = new Pending();
        }
    }

    private Stripes() {}

    /** For the holder alone. */
    static Pending pending(int stripe) {
        return PENDING[stripe];
    }

    static int of(long position) {
        return (int) ((position >>> 4) * 0x9E3779B97F4A7C15L >>> 54);
    }

    static int lock(long position) {
        int stripe = of(position);
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
