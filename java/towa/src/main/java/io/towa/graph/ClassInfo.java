package io.towa.graph;

import io.towa.agent.FieldIds;
import io.towa.agent.NumberedNames;
import io.towa.policy.Canonical;
import io.towa.policy.Fields;
import io.towa.policy.HashCodes;
import io.towa.policy.Numbered;
import io.towa.policy.Policy;
import io.towa.policy.Values;
import io.towa.pool.Layout;
import io.towa.pool.Records;
import java.lang.reflect.Field;
import java.lang.reflect.Modifier;
import java.util.ArrayList;
import java.util.List;
import jdk.internal.misc.Unsafe;

/**
 * What is known of a class whose instances are durable, or may become so: where its fields lie in DRAM and in a replica, or why it
 * cannot be durable.
 *
 * <p>A replica's fields: references first, then 8, 4, 2 and 1 bytes, so that all are aligned. Immutable but for the index of its record,
 * which it gets with its first durable instance.
 */
final class ClassInfo {
    private static final Unsafe U = Unsafe.getUnsafe();

    /** Types of fields and elements are the letters of descriptors; L stands for every reference. */
    static final char REFERENCE = 'L';

    final Class<?> type;
    final int form;
    /** Why no instance can be durable; null if they can. */
    final String refusal;
    /** Array: type of the elements, shift of their size in DRAM, where they begin. */
    final char element;
    final int elementShift;
    final long elementBase;
    /** Object: parallel arrays, one entry a durable field. */
    final Field[] fields;
    final char[] types;
    final long[] dram;
    final int[] nvm;
    /** Bytes of a replica, header included, for objects. */
    final int instanceBytes;
    /** Index of the class record in the pool; 0 before the first durable instance. */
    volatile int index;
    /** Its instances may be values of the JDK, or objects that their class finds again: kept by name. */
    final boolean isValue;
    final boolean mayBeCanonical;
    /**
     * Hash codes of its instances may stem from the identity hash of its mirror ({@code getClass().hashCode()}), and that is another than the one that follows from
     * its name: the program asked for it before. So it will be another in the next run.
     */
    final boolean hashVaries;
    /** Classes that may yet come to hold constants which instances are. */
    volatile Constants.Holder[] unlearnt = {};
    /** See {@link #hash}; null: not asked for yet. */
    private volatile String hash;
    /** See {@link #origin}; null: not asked for yet. */
    private volatile String origin;
    /** Its barriers are on. */
    volatile boolean turnedOn;

    /** Slots by field id, of those asked for: id + 1, slot + 2; open addressing. */
    private volatile int[] byId = new int[16];
    private final short[] byOffset;

    ClassInfo(Class<?> type) {
        this(type, Policy.form(type), Policy.refusal(type, DurableGraph.woven()));
    }

    /** @param form the class' own, or {@link Layout#FORM_NAMED} for what is saved by the name of the static field that holds it */
    ClassInfo(Class<?> type, int form, String refusal) {
        this.type = type;
        this.refusal = refusal;
        this.form = form;
        boolean ownForm = form == Layout.FORM_OBJECT;
        isValue = ownForm && Values.may(type);
        mayBeCanonical = ownForm && Canonical.may(type);
        hashVaries = ownForm && refusal == null && !Constants.identifyMirror(type) && Policy.hashesItself(type);
        List<Field> durable = new ArrayList<>();
        if (form == Layout.FORM_ARRAY) {
            Class<?> of = type.getComponentType();
            element = letter(of);
            elementBase = U.arrayBaseOffset(type);
            elementShift = Integer.numberOfTrailingZeros(U.arrayIndexScale(type));
        } else {
            element = 0;
            elementBase = 0;
            elementShift = 0;
            if (refusal == null && form == Layout.FORM_OBJECT) {
                collect(type, type, durable);
            }
        }
        int n = durable.size();
        fields = new Field[n];
        types = new char[n];
        dram = new long[n];
        nvm = new int[n];
        instanceBytes = layOut(durable);
        long highest = 0;
        for (int i = 0; i < n; i++) {
            highest = Math.max(highest, dram[i]);
        }
        byOffset = new short[(int) highest + 1];
        for (int i = 0; i < n; i++) {
            byOffset[(int) dram[i]] = (short) (i + 1);
        }
    }

    static char letter(Class<?> c) {
        return c.isPrimitive() ? c.descriptorString().charAt(0) : REFERENCE;
    }

    static int bytes(char type) {
        return Layout.width(type);
    }

    private static void collect(Class<?> c, Class<?> of, List<Field> into) {
        if (c == null || c == Object.class) {
            return;
        }
        collect(c.getSuperclass(), of, into);
        Field[] declared = c.getDeclaredFields();
        for (int i = 0; i < declared.length; i++) {
            Field f = declared[i];
            if (!Modifier.isStatic(f.getModifiers()) && Fields.kept(f, of)) {
                into.add(f);
            }
        }
    }

    private int layOut(List<Field> durable) {
        int at = Layout.DATA;
        int slot = 0;
        for (int pass = 0; pass < 5; pass++) {
            for (int i = 0; i < durable.size(); i++) {
                Field f = durable.get(i);
                char t = letter(f.getType());
                int bytes = bytes(t);
                if (pass != (t == REFERENCE ? 0 : 4 - Integer.numberOfTrailingZeros(bytes))) {
                    continue;
                }
                fields[slot] = f;
                types[slot] = t;
                dram[slot] = U.objectFieldOffset(f.getDeclaringClass(), f.getName());
                nvm[slot] = at;
                at += bytes;
                slot++;
            }
        }
        return at;
    }

    /** Bytes of the replica of {@code o}. */
    long replicaBytes(Object o) {
        return form == Layout.FORM_ARRAY ? Layout.DATA + arrayBytes(java.lang.reflect.Array.getLength(o)) : instanceBytes;
    }

    /** Bytes of {@code length} elements in a replica. */
    long arrayBytes(long length) {
        return length * bytes(element);
    }

    long elementAt(long index) {
        return elementBase + (index << elementShift);
    }

    /** Slot of the field at this offset in DRAM; -1 if it is not durable. */
    int slotAt(long offset) {
        return offset >= 0 && offset < byOffset.length ? byOffset[(int) offset] - 1 : -1;
    }

    /** Slot of a field as a store names it; -1 if it is not durable. */
    int slot(int fieldId) {
        int[] table = byId;
        int mask = table.length - 1;
        for (int i = fieldId * 2 & mask; table[i] != 0; i = i + 2 & mask) {
            if (table[i] == fieldId + 1) {
                return table[i + 1] - 2;
            }
        }
        Gate.pin();
        try {
            return resolve(fieldId);
        } finally {
            Gate.unpin();
        }
    }

    private synchronized int resolve(int fieldId) {
        String owner = FieldIds.owner(fieldId).replace('/', '.');
        String name = FieldIds.name(fieldId);
        String descriptor = FieldIds.desc(fieldId);
        Class<?> from = type;
        while (from != null && !from.getName().equals(owner)) {
            from = from.getSuperclass();
        }
        int slot = -1;
        for (Class<?> c = from; c != null && slot < 0; c = c.getSuperclass()) {
            for (int i = 0; i < fields.length; i++) {
                if (fields[i].getDeclaringClass() == c && fields[i].getName().equals(name)
                    && fields[i].getType().descriptorString().equals(descriptor)) {
                    slot = i;
                    break;
                }
            }
        }
        remember(fieldId, slot);
        return slot;
    }

    private void remember(int fieldId, int slot) {
        int[] old = byId;
        int used = 0;
        for (int i = 0; i < old.length; i += 2) {
            used += old[i] != 0 ? 2 : 0;
        }
        int[] table = used * 2 < old.length ? old.clone() : new int[2 * old.length];
        if (table.length != old.length) {
            for (int i = 0; i < old.length; i += 2) {
                if (old[i] != 0) {
                    put(table, old[i], old[i + 1]);
                }
            }
        }
        put(table, fieldId + 1, slot + 2);
        byId = table;
    }

    private static void put(int[] table, int key, int value) {
        int mask = table.length - 1;
        int i = (key - 1) * 2 & mask;
        while (table[i] != 0 && table[i] != key) {
            i = i + 2 & mask;
        }
        table[i] = key;
        table[i + 1] = value;
    }

    /** What the class record is called. */
    String recordName() {
        return form == Layout.FORM_NAMED ? "constant" : recordType().getName();
    }

    private Class<?> recordType() {
        // An enum constant with a body has a class of its own, below the enum's.
        return form != Layout.FORM_ENUM || type.getSuperclass() == Enum.class ? type : type.getSuperclass();
    }

    /** Whether {@link #origin} is worth asking for: the class has a number in its name. */
    boolean mayHaveOrigin() {
        return form != Layout.FORM_NAMED && NumberedNames.mayBe(recordType().getName());
    }

    /** What tells the class from others, where its name has a number from the compiler; else empty. The first call may load classes and stop the program for a moment. */
    String origin() {
        String known = origin;
        if (known == null) {
            known = mayHaveOrigin() ? Numbered.origin(recordType()) : "";
            origin = known;
        }
        return known;
    }

    /** Whether instances have another hash code than that of their identity, and the class is not the JDK's: {@link #hash} is worth asking for. */
    boolean hasOwnHash() {
        return form == Layout.FORM_OBJECT && refusal == null && type.getClassLoader() != null && !HashCodes.isIdentity(type);
    }

    /** What tells the class' {@code hashCode} from that of another version; empty: not known, or the class is the JDK's. The first call may load classes. */
    String hash() {
        String known = hash;
        if (known == null) {
            boolean jdk = form != Layout.FORM_OBJECT || refusal != null || type.getClassLoader() == null;
            known = jdk ? "" : hasOwnHash() ? HashCodes.digest(type) : HashCodes.NONE;
            hash = known;
        }
        return known;
    }

    void assumeHash(String known) {
        hash = known;
    }

    /** The fields as a class record has them. */
    List<Records.Field> recordFields() {
        List<Records.Field> all = new ArrayList<>();
        for (int i = 0; i < fields.length; i++) {
            Field f = fields[i];
            all.add(new Records.Field(nvm[i], types[i], f.getDeclaringClass().getName(), f.getName(), f.getType().descriptorString()));
        }
        return all;
    }
}
