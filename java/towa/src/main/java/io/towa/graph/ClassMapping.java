package io.towa.graph;

import io.towa.OnDemand;
import io.towa.PoolException;
import io.towa.PoolException.Reason;
import io.towa.policy.HashCodes;
import io.towa.pool.Layout;
import io.towa.pool.Records;
import java.lang.reflect.Modifier;
import java.util.ArrayList;
import java.util.List;
import jdk.internal.misc.Unsafe;

/**
 * From a class record of the pool to today's class: where each saved field goes.
 *
 * <p>Fields are found by declaring class and name; one that has moved within the hierarchy, by its name if that is the only one. A field that the class does not
 * have any more is left; one that the record does not have keeps null or zero. A primitive may have become a wider one that holds every value of it. What a reference
 * refers to must fit the field's type today: looked at for each object, for the saved graph may hold anything that the old type allowed.
 *
 * <p>A class that is gone or cannot be durable any more is a fault only when an instance is met: {@link #require}.
 */
final class ClassMapping implements Errand {
    private static final Unsafe U = Unsafe.getUnsafe();
    /** What a char, byte, ... may become. */
    private static final String WIDER_B = "SIJFD";
    private static final String WIDER_S = "IJFD";
    private static final String WIDER_C = "IJFD";
    private static final String WIDER_I = "JD";

    final Records.ClassRecord record;
    final int form;
    Class<?> type;
    ClassInfo info;
    /** Whether a replica made now would look the same. */
    boolean same;
    /** Whether the walk has met an instance. */
    volatile boolean reached;
    /** Whether {@link #run} is through, well or not. */
    private volatile boolean initialised;
    private PoolException fault;

    /** References: in the replica, in DRAM, type (null: any), class index that was last found to fit. */
    int[] refNvm = {};
    long[] refDram = {};
    Class<?>[] refTypes = {};
    int[] refFits = {};
    String[] refNames = {};
    /** Primitives that are copied as they are, by shift of their size: bytes, shorts, ints, longs. */
    final int[][] nvm = {{}, {}, {}, {}};
    final long[][] dram = {{}, {}, {}, {}};
    /** Primitives that were widened, and booleans. */
    int[] wideNvm = {};
    long[] wideDram = {};
    char[] wideFrom = {};
    char[] wideTo = {};
    boolean isString;
    /** Whether {@link Repairs} looks at the instances. */
    boolean suspect;
    /** Whether it does where sizes may not be those of the entries. */
    boolean counted;
    /** Whether it is a table of a library's. */
    boolean library;
    boolean isOnDemand;
    /** A field that was saved is no more. */
    private boolean dropped;

    private final String pool;

    ClassMapping(String pool, Records.ClassRecord record, Renames names) {
        this.pool = pool;
        this.record = record;
        form = record.form();
        if (names.isLost(record)) {
            fault = changed("is not there: " + Renames.LOST, null);
            return;
        }
        try {
            type = form == Layout.FORM_NAMED ? Object.class : names.load(record);
        } catch (ClassNotFoundException | LinkageError | RuntimeException e) {
            fault = changed("is not there (" + e + "); bring it back, give its loader, or map it to its new name (TowaOptions.withRenamed)", e);
            return;
        }
        info = form == Layout.FORM_NAMED ? DurableGraph.named() : ClassInfos.of(type);
        same = record.instanceBytes() == info.instanceBytes && record.name().equals(info.recordName()) && record.fields().equals(info.recordFields())
            && names.isUnchanged(record);
        if (info.refusal != null) {
            fault = changed("cannot be durable: " + info.refusal, null);
            return;
        }
        if (info.form != form) {
            fault = changed("was saved as " + formName(form) + " and is now " + formName(info.form) + "; bring the old form back", null);
            return;
        }
        if (form == Layout.FORM_OBJECT && (type.isInterface() || Modifier.isAbstract(type.getModifiers()))) {
            fault = changed("is abstract now; bring it back as it was", null);
            return;
        }
        isString = type == String.class;
        isOnDemand = type == OnDemand.class;
        suspect = form == Layout.FORM_OBJECT && Repairs.suspect(type);
        counted = form == Layout.FORM_OBJECT && Repairs.counted(type);
        library = form == Layout.FORM_OBJECT && LibraryTables.isOne(type);
        plan(names);
    }

    private static String formName(int form) {
        String[] names = {"an object", "an array", "an enum constant", "a class", "a constant"};
        return names[form];
    }

    /**
     * Runs the static initialiser, if it has not run: before the first instance is made, for allocating one must not run the program's code. To be called by the
     * thread that opens the pool, and by no other.
     */
    @Override
    public void run() {
        try {
            if (fault == null && form != Layout.FORM_ARRAY && form != Layout.FORM_NAMED) {
                U.ensureClassInitialized(type);
            }
        } catch (Throwable e) {
            fault = changed("cannot be initialised: " + e, e);
        }
        initialised = true;
    }

    @Override
    public boolean isDone() {
        return initialised;
    }

    /**
     * Whether instances that were met may have another hash code than when they were saved. Not if its code is the same, and so the fields that it reads are; the
     * identity, from which that of {@link Object} follows, is kept.
     */
    private boolean hashChanged() {
        if (!reached || same || form != Layout.FORM_OBJECT) {
            return false;
        }
        // The hash code of a class itself follows from its name.
        boolean known = !record.hash().isEmpty() && !info.hash().isEmpty() && record.name().equals(info.recordName());
        return known ? !record.hash().equals(info.hash()) : info.hasOwnHash();
    }

    /** Whether instances that were met may be equal now, and were different: a field is no more, or the hash code another, and so equals perhaps. */
    boolean mayMerge() {
        return hashChanged() || reached && dropped && form == Layout.FORM_OBJECT && info.hasOwnHash();
    }

    /** Whether there is a hash code to {@linkplain #compareHash compare}. */
    boolean hasHash() {
        return fault == null && form == Layout.FORM_OBJECT && !record.hash().isEmpty();
    }

    /**
     * @param known the class comes from the files from which it came when its hash code was compared last
     * @return whether it is known to be the same
     */
    boolean compareHash(boolean known) {
        if (known) {
            info.assumeHash(record.hash());
        }
        same &= HashCodes.same(record.hash(), info.hash());
        return record.hash().equals(info.hash());
    }

    /** Before the first instance. */
    void require() {
        if (fault != null) {
            throw fault;
        }
        reached = true;
    }

    /** Whether there is such a class, and a replica made now would look otherwise. */
    boolean isChanged() {
        return fault == null && !same;
    }

    private PoolException changed(String what, Throwable cause) {
        return new PoolException(Reason.CHANGED_CLASS, pool + ": class " + record.name() + ", of which the pool has instances, " + what, cause);
    }

    private PoolException damaged(String what) {
        return new PoolException(Reason.DAMAGED, pool + ": the record of class " + record.name() + " at " + record.at() + " " + what
            + "; restore the file from a copy");
    }

    private void plan(Renames names) {
        if (form == Layout.FORM_ARRAY && info.element != ClassInfo.REFERENCE) {
            return;
        }
        if (form == Layout.FORM_ARRAY) {
            refTypes = new Class<?>[] {type.getComponentType() == Object.class ? null : type.getComponentType()};
            refFits = new int[1];
            refNames = new String[] {"[]"};
            return;
        }
        List<Records.Field> saved = record.fields();
        int[] slots = new int[saved.size()];
        boolean[] taken = new boolean[info.types.length];
        for (int i = 0; i < slots.length; i++) {
            Records.Field f = saved.get(i);
            if (f.offset() < Layout.DATA || f.offset() % ClassInfo.bytes(f.type()) != 0
                || f.offset() + ClassInfo.bytes(f.type()) > record.instanceBytes()) {
                fault = damaged("has field " + f.name() + " at " + f.offset());
                return;
            }
            slots[i] = slotOf(names.name(f.declaring()), f.name());
            if (slots[i] >= 0) {
                taken[slots[i]] = true;
            }
        }
        for (int i = 0; i < slots.length; i++) {
            if (slots[i] < 0) {
                slots[i] = moved(saved, slots, taken, i);
            }
        }
        Plan p = new Plan();
        for (int i = 0; i < slots.length; i++) {
            dropped |= slots[i] < 0;
            if (slots[i] >= 0 && !p.add(saved.get(i), slots[i])) {
                Records.Field f = saved.get(i);
                fault = changed("has changed: field " + f.name() + " of " + f.declaring() + " was saved as " + f.descriptor() + " and is now "
                    + info.fields[slots[i]].getType().descriptorString() + ", which cannot hold every value of it; give the field a new name, or its old type", null);
                return;
            }
        }
        p.done();
    }

    private int slotOf(String declaring, String name) {
        for (int s = 0; s < info.fields.length; s++) {
            if (info.fields[s].getName().equals(name) && info.fields[s].getDeclaringClass().getName().equals(declaring)) {
                return s;
            }
        }
        return -1;
    }

    /** Where field {@code i} is now, if there is one field of that name that no other saved field claims, and it can hold the value; else -1. */
    private int moved(List<Records.Field> saved, int[] slots, boolean[] taken, int i) {
        String name = saved.get(i).name();
        for (int k = 0; k < slots.length; k++) {
            if (k != i && slots[k] < 0 && saved.get(k).name().equals(name)) {
                return -1;
            }
        }
        int found = -1;
        for (int s = 0; s < info.fields.length; s++) {
            if (!taken[s] && info.fields[s].getName().equals(name)) {
                if (found >= 0) {
                    return -1;
                }
                found = s;
            }
        }
        if (found < 0 || !becomes(saved.get(i).type(), info.types[found])) {
            return -1;
        }
        taken[found] = true;
        return found;
    }

    private static boolean becomes(char from, char to) {
        if (from == to) {
            return true;
        }
        switch (from) {
            case 'B':
                return WIDER_B.indexOf(to) >= 0;
            case 'S':
                return WIDER_S.indexOf(to) >= 0;
            case 'C':
                return WIDER_C.indexOf(to) >= 0;
            case 'I':
                return WIDER_I.indexOf(to) >= 0;
            default:
                return from == 'F' && to == 'D';
        }
    }

    /** The bits of a value of type {@code from} as one of type {@code to}. */
    static long widened(long bits, char from, char to) {
        long value;
        switch (from) {
            case 'Z':
                // Compiled code takes it for 0 or 1.
                return bits == 0 ? 0 : 1;
            case 'B':
                value = (byte) bits;
                break;
            case 'S':
                value = (short) bits;
                break;
            case 'C':
                value = (char) bits;
                break;
            case 'F':
                return Double.doubleToRawLongBits(Float.intBitsToFloat((int) bits));
            default:
                value = (int) bits;
        }
        if (to == 'F') {
            return Float.floatToRawIntBits(value);
        }
        return to == 'D' ? Double.doubleToRawLongBits(value) : value;
    }

    /** Gathers the fields by how they are filled. */
    private final class Plan {
        private final List<int[]> refs = new ArrayList<>();
        private final List<int[]> wide = new ArrayList<>();
        private final List<List<int[]>> plain = List.of(new ArrayList<>(), new ArrayList<>(), new ArrayList<>(), new ArrayList<>());

        boolean add(Records.Field f, int slot) {
            char to = info.types[slot];
            if (!becomes(f.type(), to)) {
                return false;
            }
            int[] entry = {f.offset(), slot, f.type()};
            if (to == ClassInfo.REFERENCE) {
                refs.add(entry);
            } else if (f.type() == to && to != 'Z') {
                plain.get(Integer.numberOfTrailingZeros(ClassInfo.bytes(to))).add(entry);
            } else {
                wide.add(entry);
            }
            return true;
        }

        void done() {
            int n = refs.size();
            refNvm = offsets(refs);
            refDram = targets(refs);
            refFits = new int[n];
            refTypes = new Class<?>[n];
            refNames = new String[n];
            for (int i = 0; i < n; i++) {
                java.lang.reflect.Field f = info.fields[refs.get(i)[1]];
                refTypes[i] = f.getType() == Object.class ? null : f.getType();
                refNames[i] = f.getDeclaringClass().getName() + "." + f.getName();
            }
            for (int s = 0; s < 4; s++) {
                nvm[s] = offsets(plain.get(s));
                dram[s] = targets(plain.get(s));
            }
            wideNvm = offsets(wide);
            wideDram = targets(wide);
            wideFrom = new char[wideNvm.length];
            wideTo = new char[wideNvm.length];
            for (int i = 0; i < wideNvm.length; i++) {
                wideFrom[i] = (char) wide.get(i)[2];
                wideTo[i] = info.types[wide.get(i)[1]];
            }
        }

        private int[] offsets(List<int[]> entries) {
            int[] all = new int[entries.size()];
            for (int i = 0; i < all.length; i++) {
                all[i] = entries.get(i)[0];
            }
            return all;
        }

        private long[] targets(List<int[]> entries) {
            long[] all = new long[entries.size()];
            for (int i = 0; i < all.length; i++) {
                all[i] = info.dram[entries.get(i)[1]];
            }
            return all;
        }
    }
}
