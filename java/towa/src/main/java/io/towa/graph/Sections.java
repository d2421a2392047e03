package io.towa.graph;

import io.towa.PoolException;
import io.towa.TowaException;
import io.towa.pool.UndoLog;
import java.util.ArrayList;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.LongAdder;
import java.util.concurrent.locks.ReentrantLock;
import jdk.internal.vm.annotation.DontInline;

/**
 * {@code Towa.atomically}: groups of stores of one thread, one group at a time; nested calls join the outer one.
 *
 * <p>Other threads go on, and what they store is durable at once; only the section's own stores are undone by a crash. A field that both the
 * section and another thread store to without a lock between them goes back to what it was when the section first stored to it.
 *
 * <p>Some methods of the JDK's collections are sections, too: {@link #begin}, {@link #end}.
 */
public final class Sections {
    private static final ReentrantLock LOCK = new ReentrantLock();

    private Sections() {}

    /** Runs {@code writes} as one section, or as part of the one that this thread is in. */
    public static void run(Runnable writes) {
        LOCK.lock();
        try {
            if (LOCK.getHoldCount() > 1) {
                writes.run();
                return;
            }
            if (!DurableGraph.active()) {
                throw new TowaException("no pool is open: call Towa.open first");
            }
            beginLog();
            try {
                writes.run();
            } finally {
                endLog();
            }
        } finally {
            LOCK.unlock();
        }
    }

    /**
     * A section of this thread begins, or it goes on in the one that it is in, until {@link #leave}.
     *
     * @return false if that of another thread does not end in time
     */
    static boolean enter(long seconds) {
        if (!lockWithin(seconds)) {
            return false;
        }
        if (LOCK.getHoldCount() == 1) {
            beginLog();
        }
        return true;
    }

    static void leave() {
        try {
            if (LOCK.getHoldCount() == 1) {
                endLog();
            }
        } finally {
            LOCK.unlock();
        }
    }

    /** Begins the log of this thread's section. The lock is held, so the numbers that are left stay. */
    static void beginLog() {
        if (!UndoLog.writesToBegin()) {
            UndoLog.begin();
            return;
        }
        // Inside the gate, as all stores to the pool: the committer takes the pages that were stored to while it is shut.
        int gate = Gate.enter();
        try {
            UndoLog.begin();
        } finally {
            Gate.exit(gate);
        }
    }

    private static void endLog() {
        // Inside the gate, as all stores to the pool: a commit has the end of the section, or not.
        int gate = Gate.enter();
        try {
            UndoLog.end();
        } finally {
            Gate.exit(gate);
        }
    }

    /** Objects whose methods are under way as sections of this thread, the last one last; under the lock. */
    private static final ArrayList<Object> WHOLE = new ArrayList<>();
    private static final long PATIENCE_S = 1;
    private static final long CLOSE_PATIENCE_S = 10;
    /** Methods that ran unprotected, because another section did not end in time. */
    private static final LongAdder UNPROTECTED = new LongAdder();

    /**
     * A method of the collection {@code o} begins that must be whole: a section, if {@code o} is durable.
     *
     * <p>It waits a second at most for a section of another thread: that one may be waiting for a lock which this thread holds. Then the
     * method goes on as any other code would, and is counted.
     */
    @DontInline
    public static void begin(Object o) {
        if (!DurableGraph.active() || Replicas.find(o) == 0) {
            return;
        }
        if (!lockWithin(PATIENCE_S)) {
            UNPROTECTED.increment();
            return;
        }
        boolean begun = false;
        try {
            if (LOCK.getHoldCount() == 1) {
                if (!DurableGraph.active()) {
                    return;
                }
                try {
                    beginLog();
                } catch (PoolException e) {
                    // A full pool: better unprotected than refused in the midst of the collection's own work.
                    UNPROTECTED.increment();
                    return;
                }
            }
            WHOLE.add(o);
            begun = true;
        } finally {
            if (!begun) {
                LOCK.unlock();
            }
        }
    }

    private static boolean lockWithin(long seconds) {
        return lockWithin(LOCK, seconds);
    }

    /** Waits so long for {@code lock}, whoever interrupts; the interrupt is there afterwards. */
    static boolean lockWithin(ReentrantLock lock, long seconds) {
        if (lock.tryLock()) {
            return true;
        }
        boolean interrupted = false;
        long end = System.nanoTime() + seconds * 1_000_000_000;
        try {
            for (;;) {
                try {
                    return lock.tryLock(end - System.nanoTime(), TimeUnit.NANOSECONDS);
                } catch (InterruptedException e) {
                    interrupted = true;
                }
            }
        } finally {
            if (interrupted) {
                Thread.currentThread().interrupt();
            }
        }
    }

    /** The method that {@link #begin} was called for ends; if that began no section, or it has ended, nothing happens. */
    @DontInline
    public static void end(Object o) {
        if (!LOCK.isHeldByCurrentThread() || WHOLE.isEmpty() || WHOLE.get(WHOLE.size() - 1) != o) {
            return;
        }
        WHOLE.remove(WHOLE.size() - 1);
        try {
            if (LOCK.getHoldCount() == 1) {
                endLog();
            }
        } finally {
            LOCK.unlock();
        }
    }

    /** Waits until no section runs, 10 s at most, and lets none begin before {@link #resume}. */
    static void pause() {
        if (LOCK.isHeldByCurrentThread()) {
            throw new TowaException("the pool cannot be closed inside Towa.atomically");
        }
        if (!lockWithin(CLOSE_PATIENCE_S)) {
            throw new TowaException("the pool is not closed: a section of another thread did not end within " + CLOSE_PATIENCE_S
                + " s (if it called System.exit, it waits for the shutdown hook that closes); what was stored is in the pool");
        }
    }

    static void resume() {
        LOCK.unlock();
    }
}
