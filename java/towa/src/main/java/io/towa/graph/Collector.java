package io.towa.graph;

import io.towa.PoolException;
import io.towa.PoolException.Reason;
import io.towa.events.Events;
import io.towa.medium.Nvm;
import io.towa.pool.Allocator;
import io.towa.pool.Layout;
import io.towa.pool.Records;
import io.towa.pool.UndoLog;
import java.util.List;
import jdk.internal.vm.annotation.DontInline;

/**
 * Frees replicas that no durable root reaches: mark and sweep over the pool, beside the program.
 *
 * <pre>
 *   begin (gate shut)   marking: true; new blocks are born marked; roots
 *   mark                the slots of every replica that is reached; who links a replica meanwhile says so: {@link #linked}
 *   end (gate shut)     roots and undo log once more, the rest; marking: false; Replicas: entries without a mark count as absent
 *   drop                those entries go, shard by shard
 *   free (gate shut)    cycle + 1, durable; Allocator.sweep
 * </pre>
 *
 * <p>Why all that is reached is marked at the end: a reference gets into the pool only by an operation inside the gate, which says so before it
 * stores ({@link Promotion}'s found replicas, {@link LockedStores#mirrorRef}), wholly before the beginning or wholly after. So when a slot of a marked replica was
 * looked at, what it held was marked then, and what is stored there later was marked by who stored it. (There is nothing like a stack: whoever
 * has an object in hand, but no link to its replica, finds the replica through Replicas, and says so when it links it. The old value
 * of an overwritten slot needs no mark for the same reason.) The marker looks into replicas only that were there, complete, at the beginning:
 * one made later is marked from birth, and all it refers to is told by who copies it.
 *
 * <p>Why a replica that a thread is about to link is not freed under it: promotion and link are inside the gate together
 * ({@link Stores#field} looks the value up again; {@link LockedStores#lock} keeps the gate until the unlock), and freeing needs the gate shut. What was promoted
 * in {@link Stores#pre} and is not linked yet may be freed before the store to DRAM is mirrored: then it is promoted anew, but for large graphs ({@link Unlinked}). A store to DRAM that is not mirrored
 * yet leaves the old link in the pool, which is what the marker follows: nothing is freed that the pool still shows.
 *
 * <p>Why a crash is harmless: but for the number of the cycle nothing is written. A block is reused only after a store that unlinked it is durable
 * (each is, before its thread leaves the gate). What the undo log would bring back is as good as linked. With commits, unlinking comes in the same commit as the reuse, or an earlier one.
 */
public final class Collector {
    /** Serialises cycles. */
    private static final Object CYCLE = new Object();
    private static final Object HANDED = new Object();
    /**
     * Bytes of heap kept for a cycle that finds no other: more than the marker of a pool of some thousand classes needs, but for its stack. G1 allocates in regions that are
     * wholly free, and gives an array of more than half a region one of its own: so that is how large this one is.
     */
    private static final int RESERVE = (int) Math.max(256 << 10, largestRegion() / 2 + 1024);

    /** Under CYCLE: the pool is about to be closed, or not open yet. */
    private static boolean stopped = true;
    private static volatile boolean marking;
    /** The marks of this cycle say too little. */
    private static volatile boolean broken;
    private static volatile long cycles;
    private static volatile long dropped;
    private static volatile long lastPause;

    /** Marked, not looked into yet: the marker's own, and what others hand it. */
    private static Positions open;
    private static Positions handed;
    private static ReplicaLayouts layouts;
    private static Allocator allocator;
    /** Something in the pool was never loaded, so no recovery has looked at it: every replica is checked before it is believed. */
    private static boolean unchecked;
    /** Under CYCLE; null if it could not be had again. */
    private static byte[] reserve;

    private Collector() {}

    /** A cycle from its beginning; waits for one that is under way. Not to be called inside the gate. */
    public static void collect() {
        // A store that finds the pool full waits here, too.
        Gate.pin();
        try {
            synchronized (CYCLE) {
                if (!stopped && DurableGraph.active()) {
                    cycleInFullHeap();
                }
            }
            Gate.commitEvents();
        } finally {
            Gate.unpin();
        }
    }

    /** The heap may be full of just what a cycle would drop: then it gets what was kept for it. */
    private static void cycleInFullHeap() {
        try {
            observedCycle();
        } catch (OutOfMemoryError e) {
            if (reserve == null) {
                throw e;
            }
            reserve = null;
            observedCycle();
        } finally {
            keepReserve();
        }
    }

    /** How large G1 makes its regions at most, if it is not told: a power of two, 1 to 32 MiB, of which the heap has about 2048. */
    private static long largestRegion() {
        long size = 1 << 20;
        while (size < 32 << 20 && size < Runtime.getRuntime().maxMemory() / 2048) {
            size *= 2;
        }
        return size;
    }

    private static void keepReserve() {
        try {
            reserve = reserve == null ? new byte[RESERVE] : reserve;
        } catch (OutOfMemoryError e) {
            // The next cycle may find it.
        }
    }

    private static void observedCycle() {
        Object event = Events.begin(Events.COLLECTION);
        long before = dropped;
        cycle();
        if (Events.ended(event)) {
            Events.collection(event, Replicas.size(), dropped - before, allocator.usedBytes(), lastPause);
        }
    }

    /**
     * After {@code e}, outside the gate: makes room if that may help.
     *
     * @param tried whether it was tried already; then, or if something else is wrong, {@code e} is thrown
     */
    @DontInline
    static void makeRoom(PoolException e, boolean tried) {
        if (tried || e.reason() != Reason.FULL) {
            throw e;
        }
        try {
            collect();
        } catch (PoolException damaged) {
            // In what was never loaded. If there is no room at all, either, that is said with it.
            e.addSuppressed(damaged);
            if (!DurableGraph.allocator().isIncomplete()) {
                throw e;
            }
        }
        DurableGraph.allocator().goOn();
        Gate.pin();
        try {
            DurableGraph.awaitClose();
        } finally {
            Gate.unpin();
        }
    }

    private static void cycle() {
        allocator = DurableGraph.allocator();
        open = new Positions();
        handed = new Positions();
        lastPause = 0;
        boolean marked = false;
        try {
            begin();
            Loads.each(REACH);
            while (take()) {
                drain();
            }
            end();
            if (!broken) {
                marked = true;
                dropped += Replicas.retain();
            }
        } finally {
            free(marked);
            open = null;
            layouts = null;
        }
    }

    private static void begin() {
        long start = System.nanoTime();
        Gate.shut();
        try {
            layouts = new ReplicaLayouts(DurableGraph.classes());
            unchecked = Loads.lazily();
            allocator.colour(true);
            broken = false;
            marking = true;
            roots();
        } finally {
            Gate.open();
            paused(start);
        }
    }

    private static void end() {
        long start = System.nanoTime();
        Gate.shut();
        try {
            roots();
            do {
                drain();
            } while (take());
            marking = false;
            if (!broken) {
                Replicas.onlyMarked(allocator);
            }
        } finally {
            Gate.open();
            paused(start);
        }
    }

    /** @param marked if not, the cycle failed: only the marks go */
    private static void free(boolean marked) {
        long start = System.nanoTime();
        Gate.shut();
        try {
            marking = false;
            Replicas.onlyMarked(null);
            if (marked) {
                int next = DurableGraph.cycle() >= Layout.MAX_CYCLE ? 1 : DurableGraph.cycle() + 1;
                Nvm.putLongDurably(Layout.CYCLE, next);
                DurableGraph.cycle(next);
                Nvm.putLong(Layout.KEPT, allocator.sweep());
                Replicas.dropFree(allocator);
                cycles++;
            } else {
                allocator.unmark();
            }
            Unlinked.cycleEnded();
        } finally {
            Gate.open();
            paused(start);
        }
    }

    private static void paused(long start) {
        lastPause = Math.max(lastPause, System.nanoTime() - start);
    }

    /** Marks what is reached first. Class records made during the cycle are marked from birth. */
    private static void roots() {
        List<Records.ClassRecord> classes = DurableGraph.classes();
        for (int i = 0; i < classes.size(); i++) {
            allocator.mark(classes.get(i).at());
        }
        List<Records.RootRecord> roots = Roots.records();
        for (int i = 0; i < roots.size(); i++) {
            allocator.mark(roots.get(i).at());
            reach(Nvm.getLong(roots.get(i).value()));
        }
        long[] unlinked = Unlinked.positions();
        for (int i = 0; i < unlinked.length; i++) {
            reach(unlinked[i]);
        }
        UndoLog.visit(LOGGED);
    }

    private static final UndoLog.Visitor LOGGED = new UndoLog.Visitor() {
        @Override
        public void block(long at) {
            allocator.mark(at);
        }

        @Override
        public void entry(long at, long reference) {
            // The replica stored to is kept too: rolling back writes there, so nothing else may lie there by then.
            long holder = allocator.blockAt(at);
            if (!isRoot(holder)) {
                reach(holder);
            }
            reach(reference);
        }
    };

    private static boolean isRoot(long at) {
        List<Records.RootRecord> roots = Roots.records();
        for (int i = 0; i < roots.size(); i++) {
            if (roots.get(i).at() == at) {
                return true;
            }
        }
        return false;
    }

    private static void reach(long at) {
        if (at == 0) {
            return;
        }
        if (!allocator.contains(at)) {
            throw new PoolException(Reason.DAMAGED, DurableGraph.pool().name() + ": a reference to " + at
                + ", where no object can be; restore the file from a copy");
        }
        if (mark(at)) {
            open.push(at);
        }
    }

    private static final Loads.Visitor REACH = new Loads.Visitor() {
        @Override
        public void position(long at) {
            reach(at);
        }
    };

    private static boolean mark(long at) {
        // What is marked may be a block born since, whose header is not written yet.
        if (unchecked && !allocator.marked(at)) {
            check(at);
        }
        return allocator.mark(at);
    }

    /** That a block begins here which is as large as a replica of its class; so the allocator knows of it, too. */
    private static void check(long at) {
        int index = Nvm.getInt(at + Layout.CLASS_INDEX);
        if (!allocator.fits(at, layouts.bytes(index, Nvm.getInt(at + Layout.LENGTH)))) {
            throw new PoolException(Reason.DAMAGED, DurableGraph.pool().name() + ": the object at " + at + " of class " + index
                + " has no block of its own; restore the file from a copy");
        }
    }

    /** Inside the gate: a reference to the replica at {@code at} is about to be stored in the pool. */
    static void linked(long at) {
        Unlinked.linked(at);
        if (marking && at != 0 && markLinked(at)) {
            boolean done = false;
            try {
                synchronized (HANDED) {
                    handed.push(at);
                }
                done = true;
            } finally {
                if (!done) {
                    // No heap or stack left: it is marked, and nobody will look into it. This cycle frees nothing.
                    broken = true;
                }
            }
        }
    }

    private static boolean markLinked(long at) {
        try {
            return mark(at);
        } catch (PoolException e) {
            // Damage in what is not loaded is no affair of who links what refers to it; the marker cannot go on, though.
            broken = true;
            return false;
        }
    }

    /** Takes over what others have handed in; false if that is nothing. */
    private static boolean take() {
        synchronized (HANDED) {
            while (!handed.isEmpty()) {
                open.push(handed.pop());
            }
        }
        return !open.isEmpty();
    }

    private static void drain() {
        while (!open.isEmpty()) {
            look(open.pop());
        }
    }

    /** Reaches what the replica at {@code at} refers to. */
    private static void look(long at) {
        if (!layouts.visit(at, REACH)) {
            throw new PoolException(Reason.DAMAGED, DurableGraph.pool().name() + ": the object at " + at + " is of class " + Nvm.getInt(at + Layout.CLASS_INDEX)
                + ", which the pool does not have; restore the file from a copy");
        }
    }

    // ---- when

    static void start() {
        cycles = 0;
        dropped = 0;
        Unlinked.clear();
        synchronized (CYCLE) {
            stopped = false;
            keepReserve();
        }
        CollectorThread.launch();
    }

    /** None runs when this returns, and none begins, by itself or because it is asked for. */
    static void stop() {
        CollectorThread.end();
        synchronized (CYCLE) {
            stopped = true;
            reserve = null;
        }
    }

    static boolean isMarking() {
        return marking;
    }

    static long cycles() {
        return cycles;
    }

    static long dropped() {
        return dropped;
    }

    /** The longest time that the last cycle kept the gate shut. */
    static double lastPauseMillis() {
        return lastPause / 1e6;
    }
}
