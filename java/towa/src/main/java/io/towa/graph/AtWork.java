package io.towa.graph;

import java.util.Map;
import java.util.Set;

/**
 * Whether some thread may be between two stores to the pool while that is closed: the entry that it adds would be in the pool, and the size of its collection,
 * which is stored next, would not.
 *
 * <p>The gate is shut: no thread gets there, and one that is there stays until it waits for the gate. It runs in a method of {@code java.util}, or waits for the
 * gate or for a lock within a collection. What is unclear counts as yes, as a thread of an executor that runs: the entries are then counted at the next
 * opening, which costs time only.
 */
final class AtWork {
    private AtWork() {}

    static boolean anyButThisOne() {
        Set<Thread> all = Thread.getAllStackTraces().keySet();
        Thread[] threads = all.toArray(new Thread[0]);
        boolean[] ran = new boolean[threads.length];
        // Before the stacks: one that runs now may wait for the gate when its stack is looked at, and be seen there.
        for (int i = 0; i < threads.length; i++) {
            ran[i] = threads[i].getState() == Thread.State.RUNNABLE || threads[i].getState() == Thread.State.BLOCKED;
        }
        Map<Thread, StackTraceElement[]> stacks = Thread.getAllStackTraces();
        for (int i = 0; i < threads.length; i++) {
            if (threads[i] != Thread.currentThread() && mayBe(threads[i], ran[i], stacks.getOrDefault(threads[i], new StackTraceElement[0]))) {
                return true;
            }
        }
        return false;
    }

    private static boolean mayBe(Thread t, boolean ran, StackTraceElement[] stack) {
        // A carrier does not tell what its virtual threads do.
        if (t.getClass().getName().equals("jdk.internal.misc.CarrierThread")) {
            return true;
        }
        boolean between = ran;
        boolean collection = false;
        for (int i = 0; i < stack.length; i++) {
            String in = stack[i].getClassName();
            // A bin that is a tree has a lock of its own.
            between |= in.startsWith("io.towa.graph.") || in.startsWith("java.util.concurrent.ConcurrentHashMap") || in.startsWith("java.util.TreeMap");
            collection |= in.startsWith("java.util.");
        }
        return between && collection;
    }
}
