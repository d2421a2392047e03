package io.towa.graph;

import java.util.Map;

/**
 * Whether some thread may be between two stores to the pool while that is closed: the entry that it adds would be in the pool, and the size of its collection,
 * which is stored next, would not.
 *
 * <p>The gate is shut. Between an entry and the size a collection of the JDK runs no code of the program, so a thread that is there runs, or waits for the
 * gate, in a method of {@code java.util}. What is unclear counts as yes, as a thread of an executor that runs: the entries are then counted at the next
 * opening, which costs time only.
 */
final class AtWork {
    private AtWork() {}

    static boolean anyButThisOne() {
        for (Map.Entry<Thread, StackTraceElement[]> e : Thread.getAllStackTraces().entrySet()) {
            if (e.getKey() != Thread.currentThread() && mayBe(e.getKey(), e.getValue())) {
                return true;
            }
        }
        return false;
    }

    private static boolean mayBe(Thread t, StackTraceElement[] stack) {
        // A carrier does not tell what its virtual threads do.
        if (t.getClass().getName().equals("jdk.internal.misc.CarrierThread")) {
            return true;
        }
        boolean between = t.getState() == Thread.State.RUNNABLE;
        boolean collection = false;
        for (int i = 0; i < stack.length; i++) {
            String in = stack[i].getClassName();
            between |= in.startsWith("io.towa.graph.");
            collection |= in.startsWith("java.util.");
        }
        return between && collection;
    }
}
