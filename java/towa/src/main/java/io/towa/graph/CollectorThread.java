package io.towa.graph;

import io.towa.PoolException;
import io.towa.pool.Allocator;
import io.towa.pool.Uninterruptibly;
import java.lang.management.ManagementFactory;
import java.lang.management.MemoryPoolMXBean;
import java.lang.management.MemoryType;
import java.lang.management.MemoryUsage;
import java.util.List;

/**
 * Decides when the collector runs: when much was allocated in the pool since the last sweep, or when the JVM's old generation is nearly full,
 * which entries of dead replicas, being strong, may be to blame for.
 *
 * <p>It only looks, every {@link #LOOK_MILLIS}; that costs stores nothing.
 */
final class CollectorThread extends Thread {
    private static final int LOOK_MILLIS = 100;
    /** Replicas that are out of use hold their objects: in a small heap that is soon too much. */
    private static final long LEAST = Math.min(64L << 20, Runtime.getRuntime().maxMemory() / 8);
    /** The same, where the allocator does not know what is free: so much that may be is worth a cycle. */
    private static final long FIRST = 1 << 20;
    /** Looks between two at the JVM's heap. */
    private static final int HEAP_LOOKS = 10;

    private static CollectorThread running;

    private boolean stopped;
    /** Stores and promotions at the last cycle for the heap's sake, and whether that was any good. */
    private long changesThen = -1;
    private boolean useless;
    private MemoryPoolMXBean old;

    private CollectorThread() {
        super("towa-collector");
        setDaemon(true);
    }

    static synchronized void launch() {
        running = new CollectorThread();
        running.start();
    }

    /** Ends it, after the cycle that it is in. */
    static synchronized void end() {
        CollectorThread t = running;
        running = null;
        if (t == null || t == Thread.currentThread()) {
            return;
        }
        synchronized (t) {
            t.stopped = true;
            t.notifyAll();
        }
        Uninterruptibly.join(t);
    }

    @Override
    public void run() {
        for (int looks = 1; pause(); looks++) {
            try {
                if (muchAllocated()) {
                    Collector.collect();
                } else if (looks % HEAP_LOOKS == 0 && heapIsFull()) {
                    collectForHeap();
                }
            } catch (OutOfMemoryError e) {
                // The heap is full, perhaps of what a cycle would drop: the next look may find the little that it needs.
                // This clause is the first: the JVM loads the class of a clause before it compares, and has no room for that now.
            } catch (PoolException e) {
                // Damage in what was never loaded: who loads it will hear of it, and so does who finds the pool full. Nothing more is freed.
                return;
            }
        }
    }

    private synchronized boolean pause() {
        try {
            if (!stopped) {
                wait(LOOK_MILLIS);
            }
        } catch (InterruptedException e) {
            // nobody has reason to; look
        }
        return !stopped;
    }

    private static boolean muchAllocated() {
        if (DurableGraph.allocator().isIncomplete()) {
            // Nothing is known to be free: a program that stores needs to know if that may be much, one that only reads need not pay for it.
            return DurableGraph.allocator().allocatedSinceSweep() > 0 && grown();
        }
        return DurableGraph.allocator().allocatedSinceSweep() > Math.max(LEAST, DurableGraph.allocator().usedAfterSweep() / 2);
    }

    /** Whether what may be free is half as much as was in use after the last cycle, of whichever run. */
    private static boolean grown() {
        Allocator a = DurableGraph.allocator();
        return a.usedBytes() - a.usedAfterSweep() >= Math.max(FIRST, a.usedAfterSweep() / 2);
    }

    /** The old generation is above 80 % after a collection of the JVM, and ours may find something. */
    private boolean heapIsFull() {
        MemoryPoolMXBean pool = oldGeneration();
        MemoryUsage after = pool == null ? null : pool.getCollectionUsage();
        if (after == null || after.getMax() <= 0 || after.getUsed() < after.getMax() / 10 * 8) {
            return false;
        }
        // If the last one found next to nothing, only after many changes.
        long since = DurableGraph.changes() - changesThen;
        return since > (useless ? Replicas.size() / 8 : 0);
    }

    private void collectForHeap() {
        changesThen = DurableGraph.changes();
        long before = Collector.dropped();
        long objects = Replicas.size();
        Collector.collect();
        useless = Collector.dropped() - before < objects / 20;
    }

    private MemoryPoolMXBean oldGeneration() {
        if (old == null) {
            List<MemoryPoolMXBean> pools = ManagementFactory.getMemoryPoolMXBeans();
            for (int i = 0; i < pools.size(); i++) {
                MemoryPoolMXBean p = pools.get(i);
                if (p.getType() == MemoryType.HEAP && p.isCollectionUsageThresholdSupported()
                    && (p.getName().contains("Old") || p.getName().contains("Tenured") || old == null)) {
                    old = p;
                }
            }
        }
        return old;
    }
}
