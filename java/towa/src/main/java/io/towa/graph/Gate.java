package io.towa.graph;

import jdk.internal.misc.Unsafe;

/**
 * Every operation on durable objects passes this gate; who needs the graph to stand still (collector, committer, close) shuts it.
 *
 * <p>A counter per stripe, each on lines of its own: entering adds one and looks whether the gate is shut; shutting says so and waits
 * until all counters are zero. Each side's add or store is a full fence before its look, so one of the two sees the other. What must always hold: whoever is
 * inside never waits for someone who is outside; nobody enters twice.
 */
public final class Gate {
    private static final Unsafe U = Unsafe.getUnsafe();
    private static final int STRIPES = Integer.highestOneBit(Math.max(1, 2 * Runtime.getRuntime().availableProcessors() - 1)) << 1;
    /** Longs between two counters. */
    private static final int APART = 16;
    private static final long[] COUNTS = new long[(STRIPES + 1) * APART];
    private static final Object OPENED = new Object();
    private static volatile boolean shut;
    /** Who has it shut may pass. */
    private static volatile Thread owner;

    private Gate() {}

    private static long offset(int stripe) {
        return Unsafe.ARRAY_LONG_BASE_OFFSET + 8L * APART * (stripe + 1);
    }

    /** Enters, waiting while it is shut; the result goes to {@link #exit}. */
    public static int enter() {
        int stripe = (int) Thread.currentThread().threadId() & STRIPES - 1;
        for (;;) {
            U.getAndAddLong(COUNTS, offset(stripe), 1);
            if (!shut || owner == Thread.currentThread()) {
                return stripe;
            }
            U.getAndAddLong(COUNTS, offset(stripe), -1);
            awaitOpen();
        }
    }

    public static void exit(int stripe) {
        U.getAndAddLong(COUNTS, offset(stripe), -1);
    }

    private static void awaitOpen() {
        boolean interrupted = false;
        synchronized (OPENED) {
            while (shut) {
                try {
                    OPENED.wait();
                } catch (InterruptedException e) {
                    interrupted = true;
                }
            }
        }
        if (interrupted) {
            Thread.currentThread().interrupt();
        }
    }

    /** Shuts it and waits until nobody is inside; one at a time. */
    public static void shut() {
        synchronized (OPENED) {
            boolean interrupted = false;
            while (shut) {
                try {
                    OPENED.wait();
                } catch (InterruptedException e) {
                    interrupted = true;
                }
            }
            owner = Thread.currentThread();
            shut = true;
            if (interrupted) {
                Thread.currentThread().interrupt();
            }
        }
        U.fullFence();
        for (int i = 0; i < STRIPES; i++) {
            for (int spins = 0; U.getLongVolatile(COUNTS, offset(i)) != 0; spins++) {
                if (spins < 1000) {
                    Thread.onSpinWait();
                } else {
                    java.util.concurrent.locks.LockSupport.parkNanos(50_000);
                }
            }
        }
    }

    public static void open() {
        synchronized (OPENED) {
            owner = null;
            shut = false;
            OPENED.notifyAll();
        }
    }
}
