package io.towa.graph;

import io.towa.OnDemand;
import io.towa.TowaException;
import io.towa.events.Events;
import io.towa.medium.Nvm;
import io.towa.pool.Layout;
import java.lang.ref.Reference;
import java.lang.ref.WeakReference;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.locks.ReentrantLock;
import jdk.internal.misc.Unsafe;

/**
 * Recovery on demand: what lies behind an {@link OnDemand} is brought back when it is asked for, beside the running program.
 *
 * <pre>
 *   opening   the walk stops at every OnDemand; each gets an {@link Unloaded} as its value
 *   load      walk from there, stopping at what is loaded; OnDemands that it meets likewise | what a crash left half done is repaired, in DRAM
 *             | barriers of new classes turned on | shown in Replicas | repairs mirrored, one section | the holder gets the value
 * </pre>
 *
 * <p>Why that needs no barrier, neither on reads nor on anything else: what is not loaded nobody stores to, for nobody has it; so it is in the pool as the
 * last run left it, however long the walk takes. What is loaded is stopped at, not looked into. Nobody sees the new objects before the holder has the value, and
 * until they are shown nobody can take one of them for durable; from then on all of them are, and complete. A load that fails leaves nothing: what it showed is hidden
 * again, what it mirrored undone. Constants, which others have as well, are shown only when nothing can fail any more.
 *
 * <p>Why nothing of it is freed: the collector marks from every Unloaded that is alive, too ({@link #each}); one that comes into being while it marks is told to it
 * ({@link Collector#linked}). Until a load is over its Unloaded is alive.
 *
 * <p>Why a crash is harmless: a load stores nothing but repairs, in one section, as an ordinary recovery does; where it has not come by everything is as it was. What a
 * crash left half done behind an OnDemand may stay so for many runs. Inside a section of the program's own the repairs are not part of that: other threads
 * get the value, too, and what they store to it must stay when the section is undone.
 *
 * <p>Identity hashes of constants that are others in this run: whoever meets such a constant mends the tables that it has met, and the constant's replica says
 * so then; but tables elsewhere may be made for the old hash. So before that the pool's word {@link Layout#REHASH} is set, and from then on every table that comes
 * by is looked at; until everything has come by.
 */
public final class Loads {
    private static final Unsafe U = Unsafe.getUnsafe();
    private static final long VALUE = U.objectFieldOffset(OnDemand.class, "value");
    private static final long PATIENCE_S = 10;

    /** One load at a time; held while the pool is closed, too. Whoever needs {@link Sections} as well takes that first, or tries. */
    private static final ReentrantLock LOCK = new ReentrantLock();
    /** What stands for values that are not loaded, or were not when the collector came by last; its own lock. */
    private static final ArrayList<WeakReference<Unloaded>> UNLOADED = new ArrayList<>();
    private static volatile Session session = new Session(null);
    private static volatile long loads;

    /** One run of a pool, and what it takes to load from it. */
    static final class Session {
        /** Null when it has ended: who still has an Unloaded is not to keep all that. */
        private RecoveryWalk.From from;
        private volatile boolean open;
        private volatile boolean lazily;

        Session(RecoveryWalk.From from) {
            this.from = from;
        }

        boolean isOpen() {
            return open && this == Loads.session;
        }
    }

    private Loads() {}

    // ---- opening and closing

    /** Whether a pool with these classes can be opened without everything behind its OnDemands: nothing is to be written afresh, whatever there may be. */
    static boolean possible(ClassMapping[] mappings) {
        for (int i = 1; i < mappings.length; i++) {
            if (mappings[i] != null && mappings[i].isChanged()) {
                return false;
            }
        }
        return true;
    }

    /**
     * {@code walk} has met what is not behind an OnDemand: its OnDemands get their values, or what stands for them. Nothing can be loaded before {@link #open}.
     *
     * @return whether that was all: nothing is left for later
     */
    static boolean begin(RecoveryWalk walk) {
        Session s = new Session(walk.from);
        session = s;
        loads = 0;
        settle(walk, s);
        synchronized (UNLOADED) {
            s.lazily = !UNLOADED.isEmpty();
        }
        return !s.lazily;
    }

    /** The pool has been brought back as far as it was to be. */
    static void open() {
        session.open = true;
    }

    /**
     * No load is under way when this returns, and none begins before {@link #resume}. To be called before the gate is shut: a load may have to pass it.
     *
     * @throws TowaException one does not end
     */
    static void pause() {
        if (!Sections.lockWithin(LOCK, PATIENCE_S)) {
            throw new TowaException("the pool is not closed: the value of an OnDemand is being loaded, for more than " + PATIENCE_S + " s");
        }
    }

    /** As {@link #pause}, however long it takes: the pool cannot stay open. */
    static void await() {
        LOCK.lock();
    }

    static void resume() {
        LOCK.unlock();
    }

    /** Before the last commit, the gate shut, no load under way: if everything has been brought back, no table is stale, and each size that of the entries. */
    static void noteStale() {
        boolean all = allLoaded();
        if (rehash() && all && !DurableGraph.hashesVary()) {
            Nvm.putLongDurably(Layout.REHASH, Layout.NONE);
        }
        if ((all || session.from == null || !session.from.recount()) && !AtWork.anyButThisOne()) {
            Nvm.putLongDurably(Layout.COUNTS, Layout.NONE);
        }
    }

    /** Before anything is stored to what the pool has: until it is closed, a crash may come between an entry and the size of its collection. */
    static void doubtSizes() {
        Nvm.putLongDurably(Layout.COUNTS, Layout.STALE);
    }

    private static boolean allLoaded() {
        synchronized (UNLOADED) {
            for (int i = 0; i < UNLOADED.size(); i++) {
                Unloaded u = UNLOADED.get(i).get();
                if (u != null && Replicas.at(u.position) == null) {
                    return false;
                }
            }
        }
        return true;
    }

    /** What is not loaded stays so. No load is under way. */
    static void end() {
        session.from = null;
        session = new Session(null);
        synchronized (UNLOADED) {
            UNLOADED.clear();
            UNLOADED.trimToSize();
        }
    }

    /** Whether something was, when the pool was opened, not loaded. */
    static boolean lazily() {
        return session.lazily;
    }

    static boolean rehash() {
        return Nvm.getLong(Layout.REHASH) == Layout.STALE;
    }

    static long loads() {
        return loads;
    }

    // ---- loading

    /** The value of {@code holder}, which {@code u} stood for; from now on the holder has it itself, unless it was given another meanwhile. */
    public static Object load(OnDemand<?> holder, Unloaded u) {
        // Where the stack ends nothing has begun.
        Promotion.roomOnStack(200, 0, 0, 0, 0);
        Object v;
        try {
            v = atOnce(u);
            if (v == null) {
                // It is to be healed, which takes a section, and another thread is in one: after that, then.
                if (!Sections.enter(PATIENCE_S)) {
                    throw new TowaException("the value of an OnDemand must be healed first, which takes a section, and one of another thread did not end within " + PATIENCE_S
                        + " s (if it waits for a lock that this thread holds, it never will)");
                }
                try {
                    v = atOnce(u);
                } finally {
                    Sections.leave();
                }
            }
        } finally {
            Events.commitWaiting();
        }
        U.compareAndSetReference(holder, VALUE, u, v);
        // So long the collector keeps the replicas.
        Reference.reachabilityFence(u);
        return v;
    }

    /** @return null if a section is needed that is not to be had at once */
    private static Object atOnce(Unloaded u) {
        if (LOCK.isHeldByCurrentThread()) {
            throw new TowaException("an OnDemand was asked for its value by the hashCode or equals of a key, while the table with that key was being brought back");
        }
        LOCK.lock();
        // Who has the lock has a carrier: others, above native frames, may hold all that there are while they wait for it.
        Gate.pin();
        try {
            if (!u.session.isOpen() || u.entry.get() != u) {
                throw new TowaException("the value of this OnDemand is not loaded, and its pool is closed, or still being opened; open it, and take the holder from there");
            }
            Object known = Replicas.at(u.position);
            return known != null ? known : atLast(u);
        } finally {
            Gate.unpin();
            LOCK.unlock();
        }
    }

    private static Object atLast(Unloaded u) {
        Object event = Events.begin(Events.LOAD);
        RecoveryWalk walk = new RecoveryWalk(u.session.from, true, true);
        Object v = walk.run(new long[] {u.position}, new String[] {"an OnDemand"})[0];
        settle(walk, u.session);
        Repairs repairs = Recovery.repair(walk, rehash());
        Recovery.turnOn(walk.from.mappings());
        if (!show(walk, repairs)) {
            return null;
        }
        loads++;
        if (Events.ended(event)) {
            Events.load(event, walk.from.pool(), walk.objects());
        }
        return v;
    }

    /**
     * What was loaded is durable from now on, and what was repaired is so in the pool.
     *
     * @return false if that takes a section, which is not to be had at once
     */
    private static boolean show(RecoveryWalk walk, Repairs repairs) {
        boolean mends = repairs.any() || !walk.rehashed().isEmpty();
        if (mends && !Sections.enter(0)) {
            return false;
        }
        boolean done = false;
        try {
            if (!walk.rehashed().isEmpty()) {
                tablesElsewhereMayBeStale();
            }
            walk.show(mends);
            repairs.mirror(walk.rehashed());
            walk.showConstants();
            Replicas.added(walk.objects() - walk.strayed());
            done = true;
        } finally {
            if (!done) {
                walk.hide();
            }
            if (mends) {
                Sections.leave();
            }
        }
        return true;
    }

    /** Before a constant's replica gets the identity hash that it has in this run, while something is not loaded. */
    static void tablesElsewhereMayBeStale() {
        if (rehash()) {
            return;
        }
        int gate = Gate.enter();
        try {
            Nvm.putLongDurably(Layout.REHASH, Layout.STALE);
        } finally {
            Gate.exit(gate);
        }
    }

    /** Gives the OnDemands that {@code walk} has met their values, if these are loaded, or what stands for them. */
    private static void settle(RecoveryWalk walk, Session s) {
        List<OnDemand<?>> holders = walk.onDemands();
        for (int i = 0; i < holders.size(); i++) {
            long position = walk.behind(i);
            if (position != 0) {
                Object known = walk.at(position);
                U.putReferenceRelease(holders.get(i), VALUE, known != null ? known : register(new Unloaded(position, s)));
            }
        }
    }

    private static Unloaded register(Unloaded u) {
        int gate = Gate.enter();
        try {
            Collector.linked(u.position);
            synchronized (UNLOADED) {
                UNLOADED.add(u.entry);
            }
        } finally {
            Gate.exit(gate);
        }
        return u;
    }

    // ---- the collector

    /** Hears of replicas. */
    interface Visitor {
        void position(long at);
    }

    /** Tells {@code v} where the values lie that are not loaded, and somebody may still ask for. */
    static void each(Visitor v) {
        synchronized (UNLOADED) {
            int kept = 0;
            for (int i = 0; i < UNLOADED.size(); i++) {
                WeakReference<Unloaded> entry = UNLOADED.get(i);
                Unloaded u = entry.get();
                if (u != null) {
                    v.position(u.position);
                    UNLOADED.set(kept++, entry);
                }
            }
            UNLOADED.subList(kept, UNLOADED.size()).clear();
        }
    }
}
