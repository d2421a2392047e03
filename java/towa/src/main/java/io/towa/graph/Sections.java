package io.towa.graph;

import io.towa.TowaException;
import io.towa.pool.UndoLog;
import java.util.concurrent.locks.ReentrantLock;

/**
 * {@code Towa.atomically}: groups of stores of one thread, one group at a time; nested calls join the outer one.
 *
 * <p>Other threads go on, and what they store is durable at once; only the section's own stores are undone by a crash. A field that both the
 * section and another thread store to without a lock between them goes back to what it was when the section first stored to it.
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
            UndoLog.begin();
            try {
                writes.run();
            } finally {
                // Inside the gate, as all stores to the pool: a commit has the end of the section, or not.
                int gate = Gate.enter();
                try {
                    UndoLog.end();
                } finally {
                    Gate.exit(gate);
                }
            }
        } finally {
            LOCK.unlock();
        }
    }

    /** Waits until no section runs, and lets none begin before {@link #resume}. */
    static void pause() {
        if (LOCK.isHeldByCurrentThread()) {
            throw new TowaException("the pool cannot be closed inside Towa.atomically");
        }
        LOCK.lock();
    }

    static void resume() {
        LOCK.unlock();
    }
}
