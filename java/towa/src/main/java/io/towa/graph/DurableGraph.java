package io.towa.graph;

import io.towa.Metrics;
import io.towa.PoolException;
import io.towa.PoolException.Reason;
import io.towa.TowaOptions;
import io.towa.agent.Agent;
import io.towa.agent.Groups;
import io.towa.backup.BackupListener;
import io.towa.barrier.Header;
import io.towa.events.Events;
import io.towa.medium.Nvm;
import io.towa.policy.HashCodes;
import io.towa.policy.Numbered;
import io.towa.pool.Allocator;
import io.towa.pool.Committer;
import io.towa.pool.Layout;
import io.towa.pool.PoolFile;
import io.towa.pool.Records;
import io.towa.pool.Superblock;
import io.towa.pool.UndoLog;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.locks.LockSupport;
import jdk.internal.misc.Unsafe;

/**
 * The one pool that is open, and what belongs to it.
 *
 * <pre>
 *   open:  file, lock, mapping | JDK classes woven | undo | recovery sets the roots | active: stores are seen | backups are served
 *   close: no backups | gate shut | last commit | tables forgotten | unmapped
 * </pre>
 */
public final class DurableGraph {
    private static volatile boolean active;
    /** The collector has ended, and the gate is not shut yet, or is. */
    private static volatile boolean closing;
    private static PoolFile pool;
    private static Allocator allocator;
    private static volatile Committer committer;
    private static TowaOptions options;
    private static int cycle;
    private static boolean skip;
    private static boolean woven;
    private static ClassInfo named;
    private static List<Records.ClassRecord> classes = new ArrayList<>();
    private static int nextIndex;
    private static boolean hashesVary;
    private static final Object CLASS_RECORDS = new Object();

    private static final Counter STORES = new Counter();
    private static final Counter PROMOTED = new Counter();
    private static final Counter SKIPPED = new Counter();

    private DurableGraph() {}

    /** Opens a pool; see {@link io.towa.Towa#open}. */
    public static void open(Path path, TowaOptions how) {
        Events.start();
        try {
            open(path, how, true);
        } finally {
            Events.commitWaiting();
        }
    }

    /** @param withAgent false in tests of this package, which call {@link Stores} themselves */
    static synchronized void open(Path path, TowaOptions how, boolean withAgent) {
        woven = withAgent;
        if (active) {
            throw new PoolException(Reason.BUSY, pool.name() + " is open; close it first: one pool at a time");
        }
        String unlike = Header.selfTest();
        if (unlike != null) {
            throw new PoolException(Reason.NO_AGENT, "this Java machine is not one that Towa knows: " + unlike + "; use a JDK 25");
        }
        PoolFile file = new PoolFile(path, how.capacity(), how.durability());
        try {
            pool = file;
            options = how;
            skip = how.skipsNotDurable();
            allocator = new Allocator(file, file.superblock().capacity, Nvm.getLong(Layout.FRONTIER));
            cycle = (int) Nvm.getLong(Layout.CYCLE);
            if (woven) {
                initializeBarriers();
                Agent.weaveJdk();
            }
            ClassInfos.reset();
            hashesVary = false;
            named = new ClassInfo(Object.class, Layout.FORM_NAMED, null);
            if (woven) {
                Groups.ensureFlipped(new Class<?>[0], 0);
            }
            UndoLog.open(file, allocator);
            classes = Records.classes(file.name(), Nvm.getLong(Layout.FRONTIER));
            nextIndex = 1;
            for (int i = 0; i < classes.size(); i++) {
                nextIndex = Math.max(nextIndex, classes.get(i).index() + 1);
            }
            Roots.reset(Records.roots(file.name(), Nvm.getLong(Layout.FRONTIER)));
            if (woven) {
                Roots.requireMarks();
            }
            if (file.fresh()) {
                Replicas.reset(0);
                KnownCode.none();
                Loads.doubtSizes();
            } else {
                Recovery.recover(file, allocator, classes, how);
            }
            committer = Committer.start(file, how);
            active = true;
            if (woven) {
                Roots.learnAll();
            }
            Collector.start();
            allocator.holdBack();
            BackupListener.begin(file, committer);
        } catch (RuntimeException | Error e) {
            active = false;
            abandon(file);
            throw e;
        }
    }

    /**
     * What barriers call. A barrier may run while a class is being defined (the weaver, and other agents, store to fields, too). If it began to initialise one of
     * these then, and that needed the class that is being defined, the Java machine would refuse it for ever.
     */
    private static void initializeBarriers() {
        Class<?>[] all = {Replicas.class, Stores.class, LockedStores.class, Sections.class};
        for (int i = 0; i < all.length; i++) {
            Unsafe.getUnsafe().ensureClassInitialized(all[i]);
        }
    }

    /** See {@link io.towa.Towa#holdsData}. */
    public static boolean holdsData(Path path) {
        if (!java.nio.file.Files.exists(path)) {
            return false;
        }
        try (java.nio.channels.FileChannel file = java.nio.channels.FileChannel.open(path)) {
            return !Superblock.isUnmade(file) && Superblock.read(file, path.toString()).ready;
        } catch (java.io.IOException e) {
            throw new PoolException(Reason.IO, path + ": " + e.getMessage(), e);
        }
    }

    private static void abandon(PoolFile file) {
        try {
            BackupListener.end();
            if (committer != null) {
                committer.end();
                committer = null;
            }
            // It was active for a moment, perhaps: whoever stores to a root, loads or collects leaves before the file is unmapped.
            Collector.stop();
            Loads.await();
            Gate.shut();
            try {
                Loads.end();
                Replicas.reset(0);
                Roots.reset(new ArrayList<>());
                file.abandon();
            } finally {
                Gate.open();
                Loads.resume();
            }
        } catch (RuntimeException e) {
            // the first failure is the one to tell
        }
    }

    public static void close() {
        Sections.pause();
        try {
            closeBetweenSections();
        } finally {
            Sections.resume();
            Events.commitWaiting();
        }
    }

    private static synchronized void closeBetweenSections() {
        if (!active) {
            return;
        }
        Loads.pause();
        closing = true;
        try {
            closeWithoutLoads();
        } finally {
            closing = false;
            Loads.resume();
        }
    }

    /** Outside the gate: if the pool is being closed, waits until it is. What a store finds full then, without a collector, it finds closed. */
    static void awaitClose() {
        while (closing) {
            LockSupport.parkNanos(100_000);
        }
    }

    private static void closeWithoutLoads() {
        BackupListener.end();
        Collector.stop();
        if (committer != null) {
            committer.end();
        }
        Gate.shut();
        boolean closed = false;
        try {
            Loads.noteStale();
            KnownCode.save();
            PoolException lost = lastCommit();
            committer = null;
            active = false;
            closed = true;
            Loads.end();
            Replicas.reset(0);
            Roots.reset(new ArrayList<>());
            if (lost != null) {
                giveUp(lost);
            }
            pool.close();
        } finally {
            if (!closed) {
                Loads.doubtSizes();
            }
            Gate.open();
            if (!closed) {
                // The last commit failed, and can be tried again. Nothing is lost: the pool is still open.
                committer = committer.again();
                Collector.start();
                BackupListener.begin(pool, committer);
            }
        }
    }

    /** @return null, or that no commit can succeed: then the pool is to be closed without */
    private static PoolException lastCommit() {
        if (committer != null) {
            try {
                committer.last();
            } catch (PoolException e) {
                if (!committer.isBroken()) {
                    throw e;
                }
                return e;
            }
        }
        return null;
    }

    /** Lets the file go as it is: as after a crash. */
    private static void giveUp(PoolException lost) {
        try {
            pool.abandon();
        } catch (PoolException e) {
            lost.addSuppressed(e);
        }
        throw lost;
    }

    /** See {@link io.towa.Towa#sync}. */
    public static void sync() {
        Committer c = committer;
        if (c != null) {
            c.sync();
        } else if (Nvm.medium() == Nvm.SHARED) {
            pool.force();
        } else {
            pool.requireNames();
        }
    }

    /** Whether the agent weaves stores: always, but for tests of this package. */
    static boolean woven() {
        return woven;
    }

    public static boolean active() {
        return active;
    }

    static PoolFile pool() {
        return pool;
    }

    static TowaOptions options() {
        return options;
    }

    static Allocator allocator() {
        return allocator;
    }

    public static Committer committer() {
        return committer;
    }

    /** The collector's cycle: the stamp of replicas made now. */
    static int cycle() {
        return cycle;
    }

    static void cycle(int next) {
        cycle = next;
    }

    static boolean skipping() {
        return skip;
    }

    static void skipped() {
        SKIPPED.add(1);
    }

    static void stored() {
        STORES.add(1);
    }

    /** Stores and promotions so far. */
    static long changes() {
        return STORES.sum() + PROMOTED.sum();
    }

    static void promoted(int objects) {
        PROMOTED.add(objects);
    }

    static ClassInfo constantOrSelf(Object o, ClassInfo info) {
        return info.form <= Layout.FORM_ARRAY && Constants.isNamed(o, info) ? named : info;
    }

    static ClassInfo named() {
        return named;
    }

    /** Before an instance of this class first gets a replica: its barriers work, and it has a class record. */
    static void prepare(ClassInfo c, Object o) {
        if (c.index != 0) {
            return;
        }
        if (woven && !c.turnedOn) {
            Scout.turnOn(o);
        }
        findOrigin(c);
        synchronized (CLASS_RECORDS) {
            if (c.index == 0) {
                int index = record(c).index();
                if (c.hashVaries) {
                    noteHashesVary();
                }
                c.index = index;
            }
        }
    }

    /**
     * Before a class itself, or what its static field holds, becomes durable: if the compiler has numbered that class, a class record tells the next run which one it is.
     *
     * @param mirrored null: none
     */
    static void prepareMirrored(Class<?> mirrored) {
        Class<?> of = mirrored == null ? null : Numbered.element(mirrored);
        if (of != null && Numbered.is(of)) {
            ClassInfo c = ClassInfos.of(of);
            findOrigin(c);
            synchronized (CLASS_RECORDS) {
                record(c);
            }
        }
    }

    /** Outside the lock, and as code of the program runs inside the gate: loaders of the program are asked, and other agents. */
    private static void findOrigin(ClassInfo c) {
        if (!c.mayHaveOrigin() && !c.hasOwnHash()) {
            return;
        }
        Gate.enterAgain();
        try {
            c.origin();
            c.hash();
        } finally {
            Gate.exitAgain();
        }
    }

    private static Records.ClassRecord record(ClassInfo c) {
        Records.ClassRecord same = recordLike(c);
        if (same == null) {
            same = Records.addClass(allocator, nextIndex++, c.form, c.instanceBytes, c.recordName(), c.recordFields(), c.origin(), c.hash());
            classes.add(same);
            KnownCode.added(c);
        }
        return same;
    }

    /** Some key's hash code may be another in the next run: its tables are looked at then. The caller is inside the gate, or alone. */
    static void noteHashesVary() {
        hashesVary = true;
        if (!Loads.rehash()) {
            Nvm.putLongDurably(Layout.REHASH, Layout.STALE);
        }
    }

    static boolean hashesVary() {
        return hashesVary;
    }

    private static Records.ClassRecord recordLike(ClassInfo c) {
        for (int i = 0; i < classes.size(); i++) {
            Records.ClassRecord r = classes.get(i);
            boolean same = r.form() == c.form && r.instanceBytes() == c.instanceBytes && r.name().equals(c.recordName()) && r.fields().equals(c.recordFields());
            if (same && r.origin().equals(c.origin()) && HashCodes.same(r.hash(), c.hash())) {
                return r;
            }
        }
        return null;
    }

    static List<Records.ClassRecord> classes() {
        return classes;
    }

    /** See {@link io.towa.Towa#guarantee}. */
    public static String guarantee() {
        switch (Nvm.medium()) {
            case Nvm.DAX:
                return "strict; process-safe and power-safe (DAX memory)";
            case Nvm.PRIVATE:
                return "buffered: process-safe and power-safe as of the last commit";
            default:
                return "strict; process-safe (the kernel's page cache has it)";
        }
    }

    public static Metrics metrics() {
        return new Metrics(active ? guarantee() : null, Replicas.size(), allocator == null ? 0 : allocator.usedBytes(), PROMOTED.sum(), STORES.sum(), SKIPPED.sum(),
            Collector.cycles(), Collector.lastPauseMillis(), Recovery.lastSeconds(), Loads.loads());
    }
}
