package io.towa.graph;

import io.towa.medium.Nvm;
import io.towa.pool.Layout;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.IdentityHashMap;
import java.util.List;
import jdk.internal.misc.Unsafe;

/** Compares the graph in DRAM with its replicas: RBP's invariants 1 to 3, for a program that stands still. */
public final class Checker {
    private static final Unsafe U = Unsafe.getUnsafe();
    private static final int MOST = 100;

    private final List<String> found = new ArrayList<>();
    private final IdentityHashMap<Object, Boolean> seen = new IdentityHashMap<>();
    private final ArrayDeque<Object> left = new ArrayDeque<>();

    private Checker() {}

    /** What differs, at most 100 lines. */
    public static List<String> check() {
        Gate.shut();
        try {
            Checker c = new Checker();
            Roots.Root[] roots = Roots.all();
            for (int i = 0; i < roots.length; i++) {
                c.reference(roots[i].value(), Nvm.getLong(roots[i].record.value()), roots[i].name());
            }
            while (!c.left.isEmpty() && c.found.size() < MOST) {
                c.object(c.left.poll());
            }
            return c.found;
        } finally {
            Gate.open();
        }
    }

    private void reference(Object v, long position, String where) {
        if (v == null) {
            if (position != 0) {
                found.add(where + " is null, its replica refers to " + position);
            }
            return;
        }
        long word = Replicas.find(v);
        if (word == 0 && position == 0 && DurableGraph.skipping()) {
            return;
        }
        if (word == 0) {
            found.add(where + " refers to a " + v.getClass().getName() + " that is not durable");
        } else if ((word & Replicas.GREY) != 0) {
            found.add(where + " refers to a " + v.getClass().getName() + " that is still grey");
        } else if (Replicas.position(word) != position) {
            found.add(where + " refers to the object at " + Replicas.position(word) + ", its replica to " + position);
        } else if (seen.put(v, Boolean.TRUE) == null) {
            left.add(v);
        }
    }

    private void object(Object o) {
        long at = Replicas.position(Replicas.find(o));
        ClassInfo c = DurableGraph.constantOrSelf(o, ClassInfos.of(o));
        String name = o.getClass().getName() + " at " + at;
        if (Nvm.getInt(at + Layout.CLASS_INDEX) != c.index) {
            found.add(name + ": class " + Nvm.getInt(at + Layout.CLASS_INDEX) + " instead of " + c.index);
            return;
        }
        // A sentinel of the JDK has in each process the hash that it has.
        if (c.form != Layout.FORM_NAMED && Nvm.getInt(at + Layout.HASH) != System.identityHashCode(o)) {
            found.add(name + ": identity hash");
        }
        if (c.form == Layout.FORM_OBJECT) {
            for (int f = 0; f < c.types.length; f++) {
                value(o, c.dram[f], at + c.nvm[f], c.types[f], name + "." + c.fields[f].getName());
            }
        } else if (c.form == Layout.FORM_ARRAY) {
            int n = java.lang.reflect.Array.getLength(o);
            if (Nvm.getInt(at + Layout.LENGTH) != n) {
                found.add(name + ": length " + Nvm.getInt(at + Layout.LENGTH) + " instead of " + n);
                return;
            }
            int bytes = ClassInfo.bytes(c.element);
            for (int i = 0; i < n && found.size() < MOST; i++) {
                value(o, c.elementAt(i), at + Layout.DATA + (long) i * bytes, c.element, name + "[" + i + "]");
            }
        }
    }

    private void value(Object o, long dram, long at, char type, String where) {
        if (type == ClassInfo.REFERENCE) {
            reference(U.getReference(o, dram), Nvm.getLong(at), where);
        } else if (Slots.bits(o, dram, type) != Nvm.getBits(at, ClassInfo.bytes(type))) {
            found.add(where + " is " + Slots.bits(o, dram, type) + ", in the replica " + Nvm.getBits(at, ClassInfo.bytes(type)));
        }
    }
}
