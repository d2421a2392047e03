package io.towa.pool;

/** Waiting that an interrupt does not end: interrupts are for the program, which finds them afterwards. */
public final class Uninterruptibly {
    private Uninterruptibly() {}

    /** Returns when the thread has ended. */
    public static void join(Thread t) {
        boolean interrupted = false;
        while (t.isAlive()) {
            try {
                t.join();
            } catch (InterruptedException e) {
                interrupted = true;
            }
        }
        if (interrupted) {
            Thread.currentThread().interrupt();
        }
    }
}
