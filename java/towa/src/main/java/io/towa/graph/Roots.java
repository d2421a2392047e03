package io.towa.graph;

import io.towa.PoolException;
import io.towa.PoolException.Reason;
import io.towa.agent.FieldIds;
import io.towa.agent.RootFields;
import io.towa.medium.Nvm;
import io.towa.policy.Policy;
import io.towa.pool.Records;
import io.towa.pool.UndoLog;
import java.lang.ref.WeakReference;
import java.lang.reflect.Field;
import java.lang.reflect.Modifier;
import java.util.ArrayList;
import java.util.List;
import jdk.internal.misc.Unsafe;
import jdk.internal.vm.annotation.ReservedStackAccess;

/**
 * The durable roots: static fields of this program, and the pool's records of them.
 *
 * <p>A field becomes known when its class is initialised or stored to while a pool is open, or at opening, if its class is loaded by then. A
 * record in the pool without a field of this program ({@link Recovery.Bound}) keeps its value.
 */
final class Roots {
    private static final Unsafe U = Unsafe.getUnsafe();

    /** A root field of this program. */
    static final class Root {
        final Class<?> owner;
        final Field field;
        final Object base;
        final long offset;
        Records.RootRecord record;
        /** Recovery has given it a value, which its class' initialiser has not come across. */
        boolean recovered;
        private final String fieldName;
        private final String internalOwner;
        private final int pool;
        /** The next of those whose field's name falls into the same bucket. */
        private Root next;

        Root(Class<?> owner, Field field) {
            this.owner = owner;
            this.field = field;
            fieldName = field.getName();
            internalOwner = owner.getName().replace('.', '/');
            pool = pools;
            base = U.staticFieldBase(field);
            offset = U.staticFieldOffset(field);
        }

        Object value() {
            return U.getReferenceVolatile(base, offset);
        }

        String name() {
            return owner.getName() + "." + field.getName();
        }
    }

    /** Counts pools opened and closed: a root is one of the pool that it was made for. */
    private static volatile int pools;
    private static volatile Root[] all = new Root[0];
    private static List<Records.RootRecord> records = new ArrayList<>();
    /** By the field's name: where every static field is a root there are thousands. */
    private static volatile Root[] buckets = new Root[1 << 12];
    /** How many of the weaver's list were looked at since the pool was opened, and those of them whose class was not there yet. */
    private static int taken;
    private static RootFields.Root[] pending = new RootFields.Root[0];

    /** Those that are refused. */
    private static volatile Refused[] refused = new Refused[0];

    private Roots() {}

    static void reset(List<Records.RootRecord> found) {
        synchronized (Roots.class) {
            pools++;
            buckets = new Root[1 << 12];
            taken = 0;
            pending = new RootFields.Root[0];
            refused = new Refused[0];
            asked = new java.util.BitSet();
        }
        all = new Root[0];
        records = found;
    }

    static List<Records.RootRecord> records() {
        return records;
    }

    static Root[] all() {
        return all;
    }

    /** Whether some root has this name: a quick no. */
    static boolean named(String field) {
        for (Root r = first(field); r != null; r = r.next) {
            if (r.fieldName.equals(field)) {
                return true;
            }
        }
        return false;
    }

    private static Root first(String field) {
        Root[] table = buckets;
        return table[field.hashCode() & table.length - 1];
    }

    static Root at(Class<?> c, long offset) {
        Root[] roots = all;
        for (int i = 0; i < roots.length; i++) {
            if (roots[i].owner == c && roots[i].offset == offset) {
                return roots[i];
            }
        }
        return null;
    }

    /** The value that recovery has given to this root of {@code c}, the first time; null if it has given none, and from then on. */
    static Object takeRecovered(Class<?> c, String field) {
        for (Root r = first(field); r != null; r = r.next) {
            if (r.owner == c && r.fieldName.equals(field) && r.recovered) {
                r.recovered = false;
                return r.value();
            }
        }
        return null;
    }

    private static volatile int learnt;
    private static volatile java.util.BitSet asked = new java.util.BitSet();

    /**
     * Whether a static field, as a store names it, may be a root. The first time it is asked for, and whenever a class with roots was loaded since, the classes of
     * that name are looked for: one that is being initialised is found so.
     */
    static boolean known(int fieldId) {
        Gate.pin();
        try {
            boolean known = asked(fieldId, FieldIds.name(fieldId));
            if (refused.length != 0) {
                requireOne(FieldIds.owner(fieldId).replace('/', '.'), FieldIds.name(fieldId));
            }
            return known;
        } finally {
            Gate.unpin();
        }
    }

    private static boolean asked(int fieldId, String field) {
        int now = RootFields.count();
        synchronized (Roots.class) {
            if (now != learnt) {
                asked = new java.util.BitSet();
                learnt = now;
            }
            if (asked.get(fieldId)) {
                return named(field);
            }
        }
        learnAll();
        synchronized (Roots.class) {
            // Only now: had it failed, for want of room perhaps, the next store would pass for one to no root.
            if (now == learnt) {
                asked.set(fieldId);
            }
        }
        return named(field);
    }

    /** A static field of this name was stored to, as {@code owner} (internal name) names it. */
    static void stored(String owner, String field) {
        boolean found = false;
        for (Root r = first(field); r != null; r = r.next) {
            if (r.fieldName.equals(field) && r.internalOwner.equals(owner)) {
                mirror(r);
                found = true;
            }
        }
        // Named by a class that inherits it: then by its name alone.
        for (Root r = found ? null : first(field); r != null; r = r.next) {
            if (r.fieldName.equals(field)) {
                mirror(r);
            }
        }
    }

    /** Brings the field's value to its record, and again while it changes; nothing if its pool was closed meanwhile. */
    @ReservedStackAccess
    static void mirror(Root root) {
        for (boolean tried = false;; tried = true) {
            PoolException full;
            int gate = Gate.enter();
            try {
                if (root.pool != pools) {
                    return;
                }
                Object now = root.value();
                Object v;
                do {
                    v = now;
                    long position = Promotion.promote(v);
                    long at = root.record.value();
                    if (Nvm.getLong(at) != position) {
                        if (UndoLog.beforeReferences(at, 8)) {
                            Collector.linked(Nvm.getLong(at));
                        }
                        Nvm.putLongDurably(at, position);
                        DurableGraph.stored();
                    }
                    U.fullFence();
                    now = root.value();
                } while (now != v);
                return;
            } catch (PoolException e) {
                full = e;
            } finally {
                Gate.exit(gate);
            }
            Collector.makeRoom(full, tried);
        }
    }

    /**
     * Makes {@code c}'s field a root of this run, with the record that the pool has for it or a new one; the value is left alone.
     *
     * @param annotated not a root only because every static field is one: then it may be final, and recovery leaves it alone
     * @return the root; null for a field that is a root already, for one that is {@link Refused}, and if the pool is closed
     */
    static synchronized Root add(Class<?> c, Field f, boolean annotated) {
        String refusal = Policy.rootRefusal(f, annotated);
        if (refusal != null) {
            throw new PoolException(Reason.CHANGED_CLASS, refusal);
        }
        for (int i = 0; i < all.length; i++) {
            if (!all[i].field.getName().equals(f.getName()) || !all[i].owner.getName().equals(c.getName())) {
                continue;
            }
            if (all[i].owner == c) {
                return null;
            }
            if (annotated) {
                refuse(new Refused(c, f, c.getName() + "." + f.getName() + " is the durable root of another class of that name already, of " + all[i].owner.getClassLoader()
                    + ", and this one is of " + c.getClassLoader()
                    + ": one root cannot be two fields; close the pool before the program is loaded once more, or load the class by one loader"));
            }
            // Where every static field is a root the first class of a name has it.
            return null;
        }
        Root root = new Root(c, f);
        root.record = find(root);
        if (root.record != null && !Modifier.isFinal(f.getModifiers()) && holdsValue(root)) {
            refuse(new Refused(c, f, root.name() + " is no durable root of this run: the pool keeps a value under that name, as TowaOptions.withRenamed says that the program"
                + " does without it, or as its class was not found when the pool was opened; close the pool, and open it without that mapping, or with the class' loader"));
            return null;
        }
        return add(root);
    }

    /** Makes {@code c}'s field a root of this run, which recovery gives a value. */
    static synchronized Root addRecovered(Class<?> c, Field f) {
        Root root = new Root(c, f);
        root.record = find(root);
        return add(root);
    }

    private static Root add(Root root) {
        if (root.record == null) {
            root.record = record(root.owner, root.field);
        }
        if (root.record == null) {
            return null;
        }
        Root[] more = java.util.Arrays.copyOf(all, all.length + 1);
        more[all.length] = root;
        all = more;
        Root[] table = buckets;
        int bucket = root.fieldName.hashCode() & table.length - 1;
        root.next = table[bucket];
        U.storeFence();
        table[bucket] = root;
        return root;
    }

    /** Whether the pool, which is open, has a value for a root that recovery has not given it to. */
    private static boolean holdsValue(Root root) {
        int gate = Gate.enter();
        try {
            return DurableGraph.active() && root.pool == pools && Nvm.attached() && Nvm.getLong(root.record.value()) != 0;
        } finally {
            Gate.exit(gate);
        }
    }

    private static void refuse(Refused one) {
        Refused[] more = java.util.Arrays.copyOf(refused, refused.length + 1);
        more[refused.length] = one;
        refused = more;
    }

    /** A field that cannot be a root of this run: one of a class whose name another class with that root has, of another loader; or one whose value the pool keeps. */
    private static final class Refused {
        final WeakReference<ClassLoader> loader;
        final String owner;
        final String field;
        final String fault;

        Refused(Class<?> c, Field f, String fault) {
            loader = new WeakReference<>(c.getClassLoader());
            owner = c.getName();
            field = f.getName();
            this.fault = fault;
        }
    }

    /**
     * A store to a field that is {@link Refused} is refused, as long as its class is there: of two classes of one name it does not tell which it is in.
     *
     * @param owner name of the class, as the store names it
     */
    private static void requireOne(String owner, String field) {
        Refused[] of = refused;
        for (int i = 0; i < of.length; i++) {
            if (of[i].field.equals(field) && of[i].owner.equals(owner) && of[i].loader.get() != null) {
                throw new PoolException(Reason.CHANGED_CLASS, of[i].fault);
            }
        }
    }

    /** As {@link #requireOne(String, String)}, for a store that tells its class. */
    static void requireOne(Class<?> c, long offset) {
        Refused[] of = refused;
        for (int i = 0; i < of.length; i++) {
            if (of[i].owner.equals(c.getName()) && of[i].loader.get() == c.getClassLoader() && offset == offset(c, of[i].field)) {
                throw new PoolException(Reason.CHANGED_CLASS, of[i].fault);
            }
        }
    }

    private static long offset(Class<?> c, String field) {
        try {
            return U.staticFieldOffset(c.getDeclaredField(field));
        } catch (NoSuchFieldException e) {
            return -1;
        }
    }

    /** A new record, null if the pool was closed meanwhile; inside the gate, for the collector reads the list, and knows of the block only when it is there. */
    private static Records.RootRecord record(Class<?> c, Field f) {
        for (boolean tried = false;; tried = true) {
            PoolException full;
            int gate = Gate.enter();
            try {
                if (!Nvm.attached()) {
                    return null;
                }
                Records.RootRecord r = Records.addRoot(DurableGraph.allocator(), c.getName(), f.getName(), f.getType().descriptorString());
                records.add(r);
                return r;
            } catch (PoolException e) {
                full = e;
            } finally {
                Gate.exit(gate);
            }
            Collector.makeRoom(full, tried);
        }
    }

    private static Records.RootRecord find(Root root) {
        for (int i = 0; i < records.size(); i++) {
            Records.RootRecord r = records.get(i);
            if (r.className().equals(root.owner.getName()) && r.field().equals(root.field.getName())) {
                return r;
            }
        }
        return null;
    }

    /** Refuses marks on fields that can be no root, before the pool is changed. */
    static void requireMarks() {
        RootFields.Root[] listed = RootFields.all();
        for (int i = 0; i < listed.length; i++) {
            RootFields.Root r = listed[i];
            if (r.gone() || !r.annotated) {
                continue;
            }
            try {
                String refusal = Policy.rootRefusal(field(r), true);
                if (refusal != null) {
                    throw new PoolException(Reason.CHANGED_CLASS, refusal);
                }
            } catch (ClassNotFoundException | NoSuchFieldException | LinkageError e) {
                // It is being defined, or that failed: looked at with the others, later.
            }
        }
    }

    /** Every root field of the classes that are loaded becomes a root; one that the pool did not know gets its present value there. */
    static void learnAll() {
        RootFields.Root[] work = work();
        RuntimeException failure = null;
        for (int i = 0; i < work.length; i++) {
            if (!DurableGraph.active()) {
                // The pool was closed: the next opening looks at all of them.
                return;
            }
            RootFields.Root r = work[i];
            if (r.gone()) {
                done(r);
                continue;
            }
            try {
                Field f = field(r);
                Class<?> c = f.getDeclaringClass();
                Root root = add(c, f, r.annotated);
                // One that is known may have been stored to before the pool was active, or its value not have fit.
                root = root != null ? root : at(c, U.staticFieldOffset(f));
                if (root != null) {
                    mirror(root);
                }
                done(r);
            } catch (ClassNotFoundException | NoSuchFieldException | LinkageError e) {
                // It is being defined by now, or that failed after it was woven: looked at again with the next.
            } catch (RuntimeException e) {
                // The others are not to suffer for it. A field that can be no root is said so once; what had no room is tried again.
                failure = failure == null ? e : failure;
                if (!(e instanceof PoolException) || ((PoolException) e).reason() != Reason.FULL) {
                    done(r);
                }
            }
        }
        if (failure != null) {
            throw failure;
        }
    }

    /** The class is loaded: the weaver met it. A class of the same name that another loader would find is not looked for. */
    private static Field field(RootFields.Root r) throws ClassNotFoundException, NoSuchFieldException {
        return Class.forName(r.className.replace('/', '.'), false, r.loader()).getDeclaredField(r.field);
    }

    /** What is new on the weaver's list, and what is left of the old; it stays until it is {@link #done}, so that no thread overtakes another's look. */
    private static synchronized RootFields.Root[] work() {
        RootFields.Root[] listed = RootFields.all();
        RootFields.Root[] work = java.util.Arrays.copyOf(pending, pending.length + listed.length - taken);
        System.arraycopy(listed, taken, work, pending.length, listed.length - taken);
        taken = listed.length;
        pending = work;
        return work;
    }

    private static synchronized void done(RootFields.Root r) {
        for (int i = 0; i < pending.length; i++) {
            if (pending[i] == r) {
                RootFields.Root[] left = new RootFields.Root[pending.length - 1];
                System.arraycopy(pending, 0, left, 0, i);
                System.arraycopy(pending, i + 1, left, i, left.length - i);
                pending = left;
                return;
            }
        }
    }
}
