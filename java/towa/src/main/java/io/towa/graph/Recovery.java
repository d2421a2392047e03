package io.towa.graph;

import io.towa.PoolException;
import io.towa.PoolException.Reason;
import io.towa.TowaOptions;
import io.towa.agent.Agent;
import io.towa.agent.Groups;
import io.towa.agent.RootFields;
import io.towa.events.Events;
import io.towa.medium.Nvm;
import io.towa.pool.Allocator;
import io.towa.pool.Layout;
import io.towa.pool.PoolFile;
import io.towa.pool.Records;
import java.lang.management.GarbageCollectorMXBean;
import java.lang.management.ManagementFactory;
import java.lang.reflect.Field;
import java.lang.reflect.Modifier;
import java.util.ArrayList;
import java.util.List;
import jdk.internal.misc.Unsafe;

/**
 * Brings the objects of a pool back (RBP, chapter 5).
 *
 * <pre>
 *   classes of roots initialised | class records mapped | walk: classes initialised as they are met, objects made, entered and filled; their blocks marked
 *   | what a crash left half done is repaired, in DRAM | barriers turned on | the table of replicas shown, other blocks free | repairs mirrored | all roots set
 * </pre>
 *
 * What lies behind an {@link io.towa.OnDemand} is left for later ({@link Loads}), if there is no changed class, whose instances are to be written afresh; then
 * no block is known to be free until the collector has come by.
 *
 * What must always hold: until the walk is whole, nothing changes in the file, and no static field; so a failure, or a crash, leaves
 * the pool as it was, and the next recovery finds the same. The static fields of all roots are set together, at the very end.
 */
final class Recovery {
    private static final Unsafe U = Unsafe.getUnsafe();
    private static final int MOST_CLASSES = 1 << 24;
    /** Roots that a refusal names. */
    private static final int NAMED = 20;

    /**
     * What the last recovery took.
     *
     * @param seconds in all
     * @param walkSeconds of them, the walk
     * @param gcSeconds of all, pauses of the JVM's collector
     * @param objects brought back
     * @param bytes of the pool that they occupy, in whole segments
     * @param rewritten whether classes had changed, and so the graph was written afresh
     */
    record Breakdown(double seconds, double walkSeconds, double gcSeconds, long objects, long bytes, boolean rewritten) {}

    private static volatile Breakdown last = new Breakdown(0, 0, 0, 0, 0, false);

    private Recovery() {}

    static void recover(PoolFile pool, Allocator allocator, List<Records.ClassRecord> classes, TowaOptions options) {
        Object event = Events.begin(Events.RECOVERY);
        long begin = System.nanoTime();
        long frontier = Nvm.getLong(Layout.FRONTIER);
        boolean large = frontier > 64 << 20;
        long gcBefore = large ? gcMillis() : 0;
        Renames names = new Renames(pool.name(), options.renamed(), options.loader(), classes);
        List<Bound> roots = bind(pool.name(), Roots.records(), names);
        ClassMapping[] mappings = map(pool.name(), classes, names);
        RecoveryWalk.From from = new RecoveryWalk.From(pool.name(), allocator, mappings, names, sizesMayDiffer(), evolved(mappings));
        RecoveryWalk walk = new RecoveryWalk(from, Loads.possible(mappings), false);
        adoptRecords(pool.name(), allocator, classes);
        long walkBegin = System.nanoTime();
        walkFrom(walk, roots);
        long walkEnd = System.nanoTime();
        boolean whole = Loads.begin(walk);
        if (!whole) {
            initialiseAll(mappings);
        }
        Repairs repairs = repair(walk, Loads.rehash() || changed(mappings));
        if (changed(mappings)) {
            LibraryTables.look(pool.name() + ": ", walk.suspects(), repairs.changed());
        }
        turnOn(mappings);
        boolean rewritten = changed(mappings) || whole && names.followed();
        if (rewritten) {
            makeRoots(roots);
            Rewrite.run(allocator, classes, roots, walk.objects());
        } else {
            walk.install();
            if (whole) {
                allocator.sweep();
            } else {
                allocator.keepRest(Nvm.getLong(Layout.KEPT));
            }
            if (!whole && !walk.rehashed().isEmpty()) {
                Loads.tablesElsewhereMayBeStale();
            }
            repairs.mirror(walk.rehashed());
            if (makeRoots(roots)) {
                Rewrite.switchRoots(roots, values(roots));
            }
        }
        if (whole) {
            forgetOldClasses(mappings, classes, names, rewritten);
            if (Loads.rehash()) {
                Nvm.putLongDurably(Layout.REHASH, Layout.NONE);
            }
        }
        noteHashes(mappings);
        if (rewritten) {
            KnownCode.forget();
        }
        KnownCode.save();
        Loads.doubtSizes();
        Loads.open();
        setFields(roots);
        long end = System.nanoTime();
        last = new Breakdown((end - begin) / 1e9, (walkEnd - walkBegin) / 1e9, large ? (gcMillis() - gcBefore) / 1e3 : 0, walk.objects(),
            allocator.usedBytes(), rewritten);
        if (Events.ended(event)) {
            Events.recovery(event, pool.name(), DurableGraph.guarantee(), last.objects, last.bytes, large ? (long) (last.gcSeconds * 1e9) : -1, rewritten);
        }
    }

    /**
     * Whether collections may have stored another size than that of their entries: the last run did not end with {@link DurableGraph#close}, or one
     * before it, and not everything has been brought back since.
     */
    static boolean sizesMayDiffer() {
        return Nvm.getLong(Layout.COUNTS) != Layout.NONE;
    }

    static double lastSeconds() {
        return last.seconds;
    }

    static Breakdown last() {
        return last;
    }

    private static long gcMillis() {
        long ms = 0;
        List<GarbageCollectorMXBean> beans = ManagementFactory.getGarbageCollectorMXBeans();
        for (int i = 0; i < beans.size(); i++) {
            ms += Math.max(0, beans.get(i).getCollectionTime());
        }
        return ms;
    }

    /**
     * Repairs what {@code walk} has met, in DRAM.
     *
     * @param rehash hash tables may need to be made anew even if no constant was met that has another identity hash
     */
    static Repairs repair(RecoveryWalk walk, boolean rehash) {
        Repairs repairs = new Repairs(walk.suspects(), walk.from.evolved() ? new ChangedHashes(walk.from.mappings()) : ChangedHashes.NONE);
        try {
            repairs.run(rehash || !walk.rehashed().isEmpty(), walk.from.recount(), walk.frontier / Layout.DATA, walk.gone());
        } catch (PoolException e) {
            throw new PoolException(e.reason(), walk.from.pool() + ": " + e.getMessage(), e);
        } catch (RuntimeException e) {
            throw new PoolException(Reason.DAMAGED, walk.from.pool() + ": a collection that was brought back is not as its class makes it (" + e
                + "); restore the file from a copy", e);
        }
        return repairs;
    }

    /** Records of classes as they are no more, and of which the pool has no instance (any more): with them it could not be opened lazily. */
    private static void forgetOldClasses(ClassMapping[] mappings, List<Records.ClassRecord> classes, Renames names, boolean rewritten) {
        for (int i = 1; i < mappings.length; i++) {
            ClassMapping m = mappings[i];
            if (m != null && !m.same && (rewritten || !m.reached && !names.isUsed(m.record))) {
                Records.removeClass(m.record);
                classes.remove(m.record);
            }
        }
    }

    /** Whether some class has changed, even if no instance is met. */
    private static boolean evolved(ClassMapping[] mappings) {
        for (int i = 1; i < mappings.length; i++) {
            if (mappings[i] != null && !mappings[i].same) {
                return true;
            }
        }
        return false;
    }

    /** Whether the replicas of some class that was met would not look the same today. */
    private static boolean changed(ClassMapping[] mappings) {
        for (int i = 1; i < mappings.length; i++) {
            if (mappings[i] != null && mappings[i].reached && !mappings[i].same) {
                return true;
            }
        }
        return false;
    }

    // ---- roots

    /**
     * A root record, and the field of this program that gets its value. No field: the program does without it, or another record is this field's; then the pool
     * keeps the value.
     */
    static final class Bound {
        final Records.RootRecord record;
        final String name;
        /** What it is called today; null if the program does without it. */
        final Renames.RootField today;
        Class<?> owner;
        Field field;
        Object value;
        Roots.Root root;

        Bound(Records.RootRecord record, Renames names) {
            this.record = record;
            name = record.className() + "." + record.field();
            today = names.root(record.className(), record.field());
        }

        /** Its name as the pool knows it, and as {@link io.towa.TowaOptions#renamed} maps it. */
        String original() {
            return record.className() + "#" + record.field();
        }

        /** Whether it, or its class, is mapped to another name, or to none. */
        boolean isMapped() {
            return today == null || !today.toString().equals(original());
        }

        boolean isRenamed() {
            return !owner.getName().equals(record.className()) || !field.getName().equals(record.field());
        }

        boolean isNull() {
            return Nvm.getLong(record.value()) == 0;
        }
    }

    /**
     * Loads the classes of the roots, and initialises those whose field is a durable root in this program, and no others: what a pool names is no reason to run code.
     * The initialisers may set the fields, which is overwritten at the end.
     */
    private static List<Bound> bind(String pool, List<Records.RootRecord> records, Renames names) {
        List<Bound> all = new ArrayList<>();
        List<String> gone = new ArrayList<>();
        for (int i = 0; i < records.size(); i++) {
            Bound b = new Bound(records.get(i), names);
            all.add(b);
            if (b.today == null) {
                continue;
            }
            try {
                b.owner = owner(b.today, names);
                b.field = field(pool, b, gone);
            } catch (ClassNotFoundException | LinkageError e) {
                none(b, "class " + b.today.className() + " cannot be loaded: " + e, gone);
            }
        }
        refuse(pool, gone);
        for (int i = 0; i < all.size(); i++) {
            Bound old = all.get(i);
            if (old.field != null && old.isRenamed()) {
                renamed(pool, old, all, names);
            }
        }
        for (int i = 0; i < all.size(); i++) {
            Bound b = all.get(i);
            if (!b.isNull() && (b.field == null || b.isRenamed()) && isStillThere(b, all, names)) {
                throw new PoolException(Reason.CHANGED_CLASS, pool + ": TowaOptions.withRenamed " + (b.today == null ? "says that the program does without durable root "
                    : "maps to " + b.today + " durable root ") + b.original() + ", which the pool has a value for; but the program has a root of that name: take that mapping back");
            }
        }
        for (int i = 0; i < all.size(); i++) {
            if (all.get(i).field != null) {
                initialise(pool, all.get(i));
            }
        }
        return all;
    }

    /** The class of a root: that of the options' loader, or one that the program has already loaded otherwise. */
    private static Class<?> owner(Renames.RootField root, Renames names) throws ClassNotFoundException {
        try {
            return Class.forName(root.className(), false, names.loader());
        } catch (ClassNotFoundException e) {
            Class<?> loaded = RootFields.owner(root.className(), root.field());
            if (loaded == null) {
                throw e;
            }
            return loaded;
        }
    }

    private static void initialise(String pool, Bound b) {
        try {
            U.ensureClassInitialized(b.owner);
        } catch (LinkageError e) {
            if (!b.isNull()) {
                throw new PoolException(Reason.CHANGED_CLASS, pool + ": class " + b.owner.getName() + " with durable root " + b.today.field()
                    + " cannot be initialised (" + e + "); mend it, and open the pool again", e);
            }
        }
    }

    /** Whether the program has a root of the name that the pool knows, and no other value that is to go there. */
    private static boolean isStillThere(Bound b, List<Bound> all, Renames names) {
        Field f;
        try {
            f = owner(new Renames.RootField(b.record.className(), b.record.field()), names).getDeclaredField(b.record.field());
        } catch (ClassNotFoundException | NoSuchFieldException | LinkageError e) {
            return false;
        }
        boolean canBeRoot = Modifier.isStatic(f.getModifiers()) && !f.getType().isPrimitive()
            && (!Modifier.isFinal(f.getModifiers()) || Agent.allRoots() && b.isMapped());
        if (!canBeRoot || DurableGraph.woven() && !RootFields.holds(f)) {
            return false;
        }
        for (int i = 0; i < all.size(); i++) {
            Bound other = all.get(i);
            if (other != b && other.field != null && other.field.equals(f) && !other.isNull()) {
                // It gets another's value, and this one goes elsewhere.
                return b.field == null;
            }
        }
        return true;
    }

    /** Refuses a pool with values for roots that the program does not have. */
    private static void refuse(String pool, List<String> gone) {
        if (gone.isEmpty()) {
            return;
        }
        List<String> first = gone.subList(0, Math.min(gone.size(), NAMED));
        String more = gone.size() > NAMED ? ", and " + (gone.size() - NAMED) + " more (was it the agent's option roots=all that made them roots?)" : "";
        throw new PoolException(Reason.CHANGED_CLASS, pool + ": the pool has values for durable roots that this program does not have: " + String.join(", ", first) + more
            + "; bring each field back, give the loader of its class, or map it, as CLASS#FIELD, to its new name, or to \"\" to go on without it while the pool keeps its value"
            + " (TowaOptions.withRenamed)");
    }

    private static Field field(String pool, Bound b, List<String> gone) {
        Field f;
        try {
            f = b.owner.getDeclaredField(b.today.field());
        } catch (NoSuchFieldException e) {
            return none(b, "its class has no such field", gone);
        }
        if (Modifier.isFinal(f.getModifiers())) {
            return none(b, "the field is final, and recovery cannot set it", gone);
        }
        if (DurableGraph.woven() && !RootFields.holds(f)) {
            return none(b, "the field has no @DurableRoot", gone);
        }
        if (!Modifier.isStatic(f.getModifiers()) || f.getType().isPrimitive()) {
            throw new PoolException(Reason.CHANGED_CLASS, pool + ": " + b.name
                + " cannot be a durable root any more: it must be static and of reference type, for recovery sets it");
        }
        return f;
    }

    /** No field, which is no fault of a root without a value, nor where every static field is a root: then libraries have theirs, and change them. */
    private static Field none(Bound b, String why, List<String> gone) {
        if (!b.isNull() && (!Agent.allRoots() || b.isMapped())) {
            gone.add(b.today + " (" + (b.isMapped() ? "as " + b.original() + " is mapped; " : "") + why + ")");
        }
        return null;
    }

    /** A root under its old name, and perhaps one under the new: of two values that of the new name counts, where only their class was renamed. */
    private static void renamed(String pool, Bound old, List<Bound> all, Renames names) {
        if (old.isNull()) {
            old.field = null;
            return;
        }
        for (int i = 0; i < all.size(); i++) {
            Bound b = all.get(i);
            if (b == old || b.field == null || !b.field.equals(old.field)) {
                continue;
            }
            if (b.isNull()) {
                b.field = null;
            } else if (b.isRenamed()) {
                throw new PoolException(Reason.CHANGED_CLASS, pool + ": TowaOptions.withRenamed maps both durable root " + old.original() + " and " + b.original() + " to "
                    + old.today + "; map one of them to a root of its own, or to \"\"");
            } else if (names.isMapped(old.record.className(), old.record.field())) {
                throw new PoolException(Reason.CHANGED_CLASS, pool + ": TowaOptions.withRenamed maps durable root " + old.original() + " to " + old.today
                    + ", which has a value of its own; map it to a root of its own, or to \"\"");
            } else {
                old.field = null;
                return;
            }
        }
    }

    private static void walkFrom(RecoveryWalk walk, List<Bound> roots) {
        long[] values = values(roots);
        String[] rootNames = new String[values.length];
        for (int i = 0; i < values.length; i++) {
            rootNames[i] = "root " + roots.get(i).name;
        }
        Object[] objects = walk.run(values, rootNames);
        for (int i = 0; i < values.length; i++) {
            Bound b = roots.get(i);
            b.value = objects[i];
            if (b.field != null && b.value != null && !b.field.getType().isInstance(b.value)) {
                throw new PoolException(Reason.CHANGED_CLASS, walk.from.pool() + ": durable root " + b.name + " was saved with a " + b.value.getClass().getName()
                    + ", which is no " + b.field.getType().getName() + "; give the field its old type back");
            }
        }
    }

    /**
     * Makes the fields roots of this run.
     *
     * @return whether some value belongs in another record than where it is: its class was renamed
     */
    private static boolean makeRoots(List<Bound> roots) {
        boolean moves = false;
        for (int i = 0; i < roots.size(); i++) {
            Bound b = roots.get(i);
            if (b.field != null) {
                b.root = Roots.addRecovered(b.owner, b.field);
                moves |= b.root.record != b.record;
            }
        }
        return moves;
    }

    private static long[] values(List<Bound> roots) {
        long[] values = new long[roots.size()];
        for (int i = 0; i < values.length; i++) {
            values[i] = Nvm.getLong(roots.get(i).record.value());
        }
        return values;
    }

    private static void setFields(List<Bound> roots) {
        for (int i = 0; i < roots.size(); i++) {
            Bound b = roots.get(i);
            if (b.field != null) {
                U.putReferenceVolatile(b.root.base, b.root.offset, b.value);
                b.root.recovered = b.value != null;
            }
        }
    }

    // ---- classes and records

    private static ClassMapping[] map(String pool, List<Records.ClassRecord> classes, Renames names) {
        int most = 0;
        for (int i = 0; i < classes.size(); i++) {
            most = Math.max(most, classes.get(i).index());
        }
        if (most > MOST_CLASSES) {
            throw new PoolException(Reason.DAMAGED, pool + ": a class record has index " + most + "; restore the file from a copy");
        }
        ClassMapping[] all = new ClassMapping[most + 1];
        for (int i = 0; i < classes.size(); i++) {
            Records.ClassRecord r = classes.get(i);
            if (all[r.index()] != null) {
                throw new PoolException(Reason.DAMAGED, pool + ": two class records, at " + all[r.index()].record.at() + " and " + r.at()
                    + ", have index " + r.index() + "; restore the file from a copy");
            }
            all[r.index()] = new ClassMapping(pool, r, names);
        }
        KnownCode.compare(all);
        return all;
    }

    /**
     * Of what is left for later nothing is known but its classes. A load must run no initialiser: one that asks for a value itself, in another thread, would wait
     * for the load, and the load for it.
     */
    private static void initialiseAll(ClassMapping[] mappings) {
        for (int i = 1; i < mappings.length; i++) {
            if (mappings[i] != null && !mappings[i].isDone()) {
                mappings[i].run();
            }
        }
    }

    private static void adoptRecords(String pool, Allocator allocator, List<Records.ClassRecord> classes) {
        for (int i = 0; i < classes.size(); i++) {
            adopt(pool, allocator, classes.get(i).at(), classes.get(i).bytes());
        }
        List<Records.RootRecord> roots = Roots.records();
        for (int i = 0; i < roots.size(); i++) {
            adopt(pool, allocator, roots.get(i).at(), roots.get(i).bytes());
        }
    }

    private static void adopt(String pool, Allocator allocator, long at, long bytes) {
        if (!allocator.adopt(at, bytes)) {
            throw new PoolException(Reason.DAMAGED, pool + ": the record at " + at + " with " + bytes + " bytes overlaps something else; restore the file from a copy");
        }
    }

    /** The barriers of every class that has instances, by one redefinition; then their records count as theirs. */
    static void turnOn(ClassMapping[] mappings) {
        Class<?>[] types = new Class<?>[mappings.length];
        int n = 0;
        for (int i = 1; i < mappings.length; i++) {
            if (isNew(mappings[i]) && mappings[i].form <= Layout.FORM_ARRAY) {
                types[n++] = mappings[i].type;
            }
        }
        if (DurableGraph.woven()) {
            Groups.ensureFlipped(types, n);
        }
        for (int i = 1; i < mappings.length; i++) {
            if (isNew(mappings[i]) && mappings[i].same) {
                mappings[i].info.index = i;
                if (mappings[i].form == Layout.FORM_ENUM) {
                    indexBodies(mappings[i].type, i);
                }
            }
        }
    }

    /** Tables hold the hash codes of this run now; those that the next will not have it must not trust. */
    private static void noteHashes(ClassMapping[] mappings) {
        for (int i = 1; i < mappings.length; i++) {
            if (mappings[i] != null && mappings[i].reached && mappings[i].info.hashVaries) {
                DurableGraph.noteHashesVary();
                return;
            }
        }
    }

    private static boolean isNew(ClassMapping m) {
        return m != null && m.reached && m.info.index == 0;
    }

    /** Constants with a body have a class each, and the record of their enum. */
    private static void indexBodies(Class<?> type, int index) {
        Object[] constants = type.getEnumConstants();
        for (int i = 0; i < constants.length; i++) {
            ClassInfos.of(constants[i]).index = index;
        }
    }
}
