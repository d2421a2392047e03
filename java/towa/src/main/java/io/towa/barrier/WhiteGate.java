package io.towa.barrier;

import jdk.internal.misc.Unsafe;
import jdk.internal.vm.annotation.ForceInline;
import jdk.internal.vm.annotation.ReservedStackAccess;

/**
 * Lets the promoter wait until every volatile or atomic write that began on a not yet durable object has ended.
 *
 * <p>Such a write enters, looks once more whether the object is durable, writes, and exits. The promoter marks its batch and then
 * calls {@link #awaitOld}. Either the writer's second look saw the mark, or the promoter waits for it: never is an atomic write to
 * an object both "on a white object" and after the copy of that object.
 *
 * <p>Always true: counters of phase p only grow while phase is p (a writer that finds the phase changed takes its entry back), so once the
 * old phase's counters are zero, all who entered in it have left. Between enter and exit nothing blocks, allocates or runs foreign code.
 */
public final class WhiteGate {
    private static final Unsafe U = Unsafe.getUnsafe();
    private static final int STRIPES = Math.min(32, Integer.highestOneBit(Math.max(1, 2 * Runtime.getRuntime().availableProcessors() - 1)) << 1);
    /** Longs between two counters: 128 bytes, two lines that the prefetcher takes together. */
    private static final int APART = 16;
    private static final long[] COUNTS = new long[(STRIPES * 2 + 1) * APART];
    private static volatile int phase;
    private static final Object TURN = new Object();

    private WhiteGate() {}

    @ForceInline
    private static long at(int slot) {
        return Unsafe.ARRAY_LONG_BASE_OFFSET + (long) (slot + 1) * APART * 8;
    }

    /** A token greater than zero for {@link #exit}. */
    public static int enter() {
        int stripe = (int) Thread.currentThread().threadId() & STRIPES - 1;
        while (true) {
            int p = phase;
            int slot = stripe << 1 | p;
            U.getAndAddLong(COUNTS, at(slot), 1L);
            if (phase == p) return slot + 1;
            U.getAndAddLong(COUNTS, at(slot), -1L);
        }
    }

    /** An exit that did not happen would stop every promoter for ever: it may use the stack kept for such methods. */
    @ReservedStackAccess
    public static void exit(int token) {
        U.getAndAddLong(COUNTS, at(token - 1), -1L);
    }

    /** Returns when every write that had entered before the call has left. Not to be called between enter and exit. */
    public static void awaitOld() {
        synchronized (TURN) {
            int old = phase;
            phase = old ^ 1;
            U.fullFence();
            for (int s = 0; s < STRIPES; s++) {
                long counter = at(s << 1 | old);
                for (int spins = 0; U.getLongVolatile(COUNTS, counter) != 0; spins++) {
                    if (spins < 200) Thread.onSpinWait();
                    else Thread.yield();
                }
            }
        }
    }
}
