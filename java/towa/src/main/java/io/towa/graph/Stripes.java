package io.towa.graph;

/** Locks of replicas, by position: taken for a copy, and for volatile and atomic stores. Whoever holds one waits for nobody. */
final class Stripes {
    private static final int COUNT = 1024;
    private static final java.util.concurrent.atomic.AtomicIntegerArray HELD = new java.util.concurrent.atomic.AtomicIntegerArray(COUNT * 16);

    private Stripes() {}

    static int lock(long position) {
        int stripe = (int) ((position >>> 4) * 0x9E3779B97F4A7C15L >>> 54);
        for (int spins = 1; !HELD.compareAndSet(stripe * 16, 0, 1); spins++) {
            if (spins % 100 == 0) {
                Thread.yield();
            } else {
                Thread.onSpinWait();
            }
        }
        return stripe;
    }

    static void unlock(int stripe) {
        HELD.setRelease(stripe * 16, 0);
    }
}
