package io.towa.graph;

import io.towa.events.Events;
import jdk.internal.misc.Unsafe;
import jdk.internal.vm.Continuation;
import jdk.internal.vm.ContinuationSupport;

/**
 * Every operation on durable objects passes this gate; who needs the graph to stand still (collector, committer, close) shuts it.
 *
 * <p>A counter per stripe, each on lines of its own: entering adds one and looks whether the gate is shut; shutting says so and waits
 * until all counters are zero. Each side's add or store is a full fence before its look, so one of the two sees the other. What must always hold: whoever is
 * inside never waits for someone who is outside; nobody enters twice.
 *
 * <p>A virtual thread keeps its carrier from before it enters, or shuts the gate, until it has left, or opened it: who is inside can always run. Else it might
 * wait without a carrier while all of these are held by others, which wait for it below a native frame or a class being initialised, and so cannot be taken from theirs.
 * Nor is a store ever a place where a thread leaves its carrier: locks that the program, or the JDK's collections, hold over one are held no longer than they were.
 */
public final class Gate {
    private static final Unsafe U = Unsafe.getUnsafe();
    private static final int STRIPES = Integer.highestOneBit(Math.max(1, 2 * Runtime.getRuntime().availableProcessors() - 1)) << 1;
    /** Longs between two counters. */
    private static final int APART = 16;
    private static final long[] COUNTS = new long[(STRIPES + 1) * APART];
    /** Whether virtual threads are mounted on carriers here. */
    private static final boolean CARRIERS = ContinuationSupport.isSupported();
    private static final Object OPENED = new Object();
    private static volatile boolean shut;
    /** Who has it shut may pass. */
    private static volatile Thread owner;

    private Gate() {}

    private static long offset(int stripe) {
        return Unsafe.ARRAY_LONG_BASE_OFFSET + 8L * APART * (stripe + 1);
    }

    /** The calling thread, if it is a virtual one, keeps its carrier until as many calls of {@link #unpin}. */
    static void pin() {
        if (CARRIERS && Thread.currentThread().isVirtual()) {
            Continuation.pin();
        }
    }

    static void unpin() {
        if (CARRIERS && Thread.currentThread().isVirtual()) {
            Continuation.unpin();
        }
    }

    /** Enters, waiting while it is shut; the result goes to {@link #exit}. */
    public static int enter() {
        pin();
        if (Events.starting()) {
            startEvents();
        }
        int stripe = (int) Thread.currentThread().threadId() & STRIPES - 1;
        for (;;) {
            U.getAndAddLong(COUNTS, offset(stripe), 1);
            if (!shut || owner == Thread.currentThread() || isInside(Thread.currentThread())) {
                return stripe;
            }
            U.getAndAddLong(COUNTS, offset(stripe), -1);
            awaitOpen();
        }
    }

    public static void exit(int stripe) {
        U.getAndAddLong(COUNTS, offset(stripe), -1);
        try {
            if (Events.waiting()) {
                commitEvents();
            }
        } finally {
            unpin();
        }
    }

    /** Threads that run code of the program inside the gate: they may enter once more, whoever wants to shut it, for that one waits for them anyway. */
    private static volatile Thread[] inside = new Thread[0];

    private static boolean isInside(Thread t) {
        Thread[] all = inside;
        for (int i = 0; i < all.length; i++) {
            if (all[i] == t) {
                return true;
            }
        }
        return false;
    }

    /** This thread, which is inside, is about to run code of the program that may store. */
    static void enterAgain() {
        synchronized (COUNTS) {
            Thread[] more = java.util.Arrays.copyOf(inside, inside.length + 1);
            more[inside.length] = Thread.currentThread();
            inside = more;
        }
    }

    /** It has run. */
    static void exitAgain() {
        synchronized (COUNTS) {
            int at = inside.length - 1;
            while (inside[at] != Thread.currentThread()) {
                at--;
            }
            Thread[] less = new Thread[inside.length - 1];
            System.arraycopy(inside, 0, less, 0, at);
            System.arraycopy(inside, at + 1, less, at, less.length - at);
            inside = less;
        }
    }

    /** Outside, and not while a pool is opened or closed: whoever does that sees to it afterwards. */
    private static boolean free() {
        return owner != Thread.currentThread() && !Thread.holdsLock(DurableGraph.class);
    }

    private static void startEvents() {
        if (free()) {
            Events.start();
        }
    }

    /** What this thread has made for the flight recorder, if it is free to commit it now. */
    static void commitEvents() {
        if (free()) {
            Events.commitWaiting();
        }
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
        pin();
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
        unpin();
    }
}
