package io.towa.graph;

import io.towa.OnDemand;
import io.towa.PoolException;
import io.towa.TowaException;
import io.towa.events.Events;
import io.towa.medium.Nvm;
import io.towa.pool.Layout;
import io.towa.pool.Records;
import io.towa.pool.UndoLog;
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
 *   load      walk from there, stopping at what is loaded | what a crash left half done is repaired, in DRAM | barriers of new classes turned on
 *             | shown in Replicas | repairs mirrored, one section | OnDemands that were met get their Unloaded | the holder gets the value
 * </pre>
 *
 * <p>Why that needs no barrier, neither on reads nor on anything else: what is not loaded nobody stores to, for nobody has it; so it is in the pool as the
 * last run left it, however long the walk takes. What is loaded is stopped at, not looked into. Nobody sees the new objects before the holder has the value, and
 * until they are shown nobody can take one of them for durable; from then on all of them are, and complete.
 *
 * <p>Why nothing of it is freed: the collector marks from every Unloaded that is alive, too ({@link #each}); one that comes into being while it marks is told to it
 * ({@link Collector#linked}). Until a load is over its Unloaded is alive.
 *
 * <p>Why a crash is harmless: a load stores nothing but repairs, in one section, as an ordinary recovery does; where it has not come by everything is as it was. What a
 * crash left half done behind an OnDemand may stay so for many runs.
 *
 * <p>Identity hashes of constants that are others in this run: whoever meets such a constant mends the tables that it has met, and the constant's replica says
 * so then; but tables elsewhere may be made for the old hash. So before that the pool's word {@link Layout#REHASH} is set, and from then on every table that comes
 * by is looked at; until a recovery has met everything.
 */
public final class Loads {
    private static final Unsafe U = Unsafe.getUnsafe();
    private static final long VALUE = U.objectFieldOffset(OnDemand.class, "value");

    /** One load at a time; held while the pool is closed, too. Whoever needs {@link Sections} as well takes that first. */
    private static final ReentrantLock LOCK = new ReentrantLock();
    /** What stands for values that are not loaded, or were not when the collector came by last; its own lock. */
    private static final ArrayList<WeakReference<Unloaded>> UNLOADED = new ArrayList<>();
    private static volatile Session session = new Session();
    /** The load that is not over, under LOCK: shown, perhaps, and not mirrored yet. Nobody sees what it brought until that is done. */
    private static Pending pending;
    private static volatile long loads;

    /** One run of a pool, and what it takes to load from it. */
    static final class Session {
        private String pool;
        private ClassMapping[] mappings;
        private Renames names;
        private boolean open;
        private boolean lazily;

        boolean isOpen() {
            return open && this == Loads.session;
        }
    }

    /** A walk that is over, and what is to be mirrored. */
    private static final class Pending {
        private final RecoveryWalk walk;
        private final Repairs repairs;

        Pending(RecoveryWalk walk, Repairs repairs) {
            this.walk = walk;
            this.repairs = repairs;
        }
    }

    private Loads() {}

    // ---- opening and closing

    /** Whether a pool with these classes can be opened without everything behind its OnDemands: nothing is to be written afresh, whatever there may be. */
    static boolean possible(ClassMapping[] mappings) {
        for (int i = 1; i < mappings.length; i++) {
            if (mappings[i] != null && !mappings[i].same) {
                return false;
            }
        }
        return true;
    }

    /** A pool is open, and {@code walk} has met what is not behind an OnDemand: its OnDemands get their values, or what stands for them. */
    static void begin(RecoveryWalk walk) {
        Session s = new Session();
        s.pool = walk.pool;
        s.mappings = walk.mappings;
        s.names = walk.names;
        s.open = true;
        s.lazily = !walk.onDemands().isEmpty();
        session = s;
        loads = 0;
        settle(walk);
    }

    /** No load is under way when this returns, and none begins before {@link #resume}. To be called before the gate is shut: a load may have to pass it. */
    static void pause() {
        LOCK.lock();
    }

    static void resume() {
        LOCK.unlock();
    }

    /** What is not loaded stays so; no load is under way. */
    static void end() {
        session = new Session();
        pending = null;
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
        return Nvm.getLong(Layout.REHASH) != 0;
    }

    static long loads() {
        return loads;
    }

    // ---- loading

    /** The value of {@code holder}, which {@code u} stood for; from now on the holder has it itself, unless it was given another meanwhile. */
    public static Object load(OnDemand<?> holder, Unloaded u) {
        Object v;
        try {
            v = atOnce(u, false);
            if (v == null) {
                // It is to be healed, which takes a section, and another thread is in one: after that, then.
                Sections.enter();
                try {
                    v = atOnce(u, true);
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
    private static Object atOnce(Unloaded u, boolean inSections) {
        if (LOCK.isHeldByCurrentThread()) {
            throw new TowaException("an OnDemand was asked for its value by the hashCode of a key while another value, with that key, was being loaded");
        }
        LOCK.lock();
        try {
            if (!u.session.isOpen() || u.entry.get() != u) {
                throw new TowaException("the pool was closed before the value of this OnDemand was loaded; open it again, and take the holder from there");
            }
            if (pending != null && !complete()) {
                return null;
            }
            Object known = Replicas.at(u.position);
            if (known != null) {
                return known;
            }
            Object event = Events.begin(Events.LOAD);
            walk(u);
            long objects = pending.walk.objects();
            if (!complete()) {
                return null;
            }
            loads++;
            if (Events.ended(event)) {
                Events.load(event, u.session.pool, objects);
            }
            return Replicas.at(u.position);
        } finally {
            LOCK.unlock();
        }
    }

    /** All up to the moment when something is to be shown: if it fails nothing has happened. */
    private static void walk(Unloaded u) {
        Session s = u.session;
        RecoveryWalk walk = new RecoveryWalk(s.pool, DurableGraph.allocator(), s.mappings, s.names, Nvm.getLong(Layout.FRONTIER), true, true);
        walk.run(new long[] {u.position}, new String[] {"an OnDemand"});
        noRecords(walk);
        Repairs repairs = Recovery.repair(walk, rehash());
        Recovery.turnOn(s.mappings);
        pending = new Pending(walk, repairs);
    }

    /** A reference to a record that passes for an object, by what it holds. */
    private static void noRecords(RecoveryWalk walk) {
        List<Records.ClassRecord> classes = DurableGraph.classes();
        for (int i = 0; i < classes.size(); i++) {
            walk.requireUnmet(classes.get(i).at());
        }
        List<Records.RootRecord> roots = Roots.records();
        for (int i = 0; i < roots.size(); i++) {
            walk.requireUnmet(roots.get(i).at());
        }
    }

    /**
     * Shows what was loaded, and mirrors what was repaired. If it fails, or needs a section that is not to be had, it is for the next to do: all of
     * it may be done again.
     */
    private static boolean complete() {
        Pending p = pending;
        boolean mends = p.repairs.any() || !p.walk.rehashed().isEmpty();
        if (mends && !Sections.tryEnter()) {
            return false;
        }
        try {
            int gate = Gate.enter();
            try {
                p.walk.show();
            } finally {
                Gate.exit(gate);
            }
            if (mends) {
                if (!p.walk.rehashed().isEmpty()) {
                    tablesElsewhereMayBeStale();
                }
                p.repairs.mirror(p.walk.rehashed());
            }
        } finally {
            if (mends) {
                Sections.leave();
            }
        }
        settle(p.walk);
        Replicas.added(p.walk.objects() - p.walk.strayed());
        pending = null;
        return true;
    }

    /** Before a constant's replica gets the identity hash that it has in this run, while something is not loaded. */
    static void tablesElsewhereMayBeStale() {
        if (rehash()) {
            return;
        }
        int gate = Gate.enter();
        try {
            Nvm.putLongDurably(Layout.REHASH, 1);
        } finally {
            Gate.exit(gate);
        }
    }

    /** Gives the OnDemands that {@code walk} has met their values, if these are loaded, or what stands for them. */
    private static void settle(RecoveryWalk walk) {
        Session s = session;
        List<OnDemand<?>> holders = walk.onDemands();
        for (int i = 0; i < holders.size(); i++) {
            OnDemand<?> holder = holders.get(i);
            long position = walk.behind(i);
            if (position == 0 || U.getReference(holder, VALUE) != null) {
                continue;
            }
            Object known = Replicas.at(position);
            U.putReferenceRelease(holder, VALUE, known != null ? known : register(new Unloaded(position, s)));
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
