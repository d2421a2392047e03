package io.towa.graph;

import io.towa.medium.Nvm;
import io.towa.pool.Layout;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.IdentityHashMap;
import java.util.List;
import jdk.internal.misc.Unsafe;

/** Compares the graph in DRAM, as far as it is loaded, with its replicas: RBP's invariants 1 to 3, for a program that stands still. */
public final class Checker {
    private static final Unsafe U = Unsafe.getUnsafe();
    private static final int MOST = 100;

    private final List<String> found = new ArrayList<>();
    /** Null if referents are not to be visited. */
    private final IdentityHashMap<Object, Boolean> seen;
    private final ArrayDeque<Object> left;

    private Checker(boolean all) {
        seen = all ? new IdentityHashMap<>() : null;
        left = all ? new ArrayDeque<>() : null;
    }

    /** What differs, at most 100 lines. */
    public static List<String> check() {
        Gate.shut();
        try {
            Checker c = new Checker(true);
            Roots.Root[] roots = Roots.all();
            for (int i = 0; i < roots.length; i++) {
                String bad = c.reference(roots[i].value(), Nvm.getLong(roots[i].record.value()));
                if (bad != null) {
                    c.found.add(roots[i].name() + bad);
                }
            }
            while (!c.left.isEmpty() && c.found.size() < MOST) {
                c.object(c.left.poll());
            }
            return c.found;
        } finally {
            Gate.open();
        }
    }

    private String reference(Object v, long position) {
        if (v == null) {
            return position == 0 ? null : " is null, its replica refers to " + position;
        }
        long word = Replicas.find(v);
        if (word == 0) {
            if (position == 0 && DurableGraph.skipping()) {
                return null;
            }
            // Of several replicas of one constant that may be freed by which its object was found.
            return isConstantAt(position, v) ? null : " refers to a " + v.getClass().getName() + " that is not durable";
        }
        if ((word & Replicas.GREY) != 0) {
            return " refers to a " + v.getClass().getName() + " that is still grey";
        }
        if (Replicas.position(word) != position && !isConstantAt(position, v)) {
            return " refers to the object at " + Replicas.position(word) + ", its replica to " + position;
        }
        if (seen != null && !(v instanceof Unloaded) && seen.put(v, Boolean.TRUE) == null) {
            left.add(v);
        }
        return null;
    }

    /**
     * Several replicas may stand for one constant: it became durable before that which was there already was loaded. So of a value only if there is one object of it:
     * an equal one, such as another path of that name, is another reference.
     */
    private static boolean isConstantAt(long position, Object v) {
        ClassInfo c = DurableGraph.constantOrSelf(v, ClassInfos.of(v));
        return position != 0 && c.form > Layout.FORM_ARRAY && Constants.isAt(position, v, c) && Constants.isOnly(v, c);
    }

    /**
     * Compares one durable object, not its referents, with its replica; nobody may store to it meanwhile.
     *
     * @return null if they agree
     */
    public static String difference(Object o) {
        int gate = Gate.enter();
        try {
            if (!Replicas.durable(o)) {
                return o.getClass().getName() + " is not durable";
            }
            Checker c = new Checker(false);
            c.object(o);
            return c.found.isEmpty() ? null : c.found.get(0);
        } finally {
            Gate.exit(gate);
        }
    }

    private void object(Object o) {
        long at = Replicas.position(Replicas.find(o));
        ClassInfo c = DurableGraph.constantOrSelf(o, ClassInfos.of(o));
        if (Nvm.getInt(at + Layout.CLASS_INDEX) != c.index) {
            found.add(name(o, at) + ": class " + Nvm.getInt(at + Layout.CLASS_INDEX) + " instead of " + c.index);
            return;
        }
        if (Nvm.getInt(at + Layout.HASH) != System.identityHashCode(o)) {
            found.add(name(o, at) + ": identity hash");
        }
        if (c.form == Layout.FORM_OBJECT) {
            for (int f = 0; f < c.types.length; f++) {
                boolean text = o instanceof String && c.types[f] == ClassInfo.REFERENCE;
                String bad = text ? text(U.getReference(o, c.dram[f]), Nvm.getLong(at + c.nvm[f])) : value(o, c.dram[f], at + c.nvm[f], c.types[f]);
                if (bad != null) {
                    found.add(name(o, at) + "." + c.fields[f].getName() + bad);
                }
            }
        } else if (c.form == Layout.FORM_ARRAY) {
            elements(o, at, c);
        }
    }

    /** What is wrong with the bytes of a string. The JVM may let equal strings share them (string deduplication), so an array other than the replica's will do, if it is equal. */
    private String text(Object bytes, long position) {
        if (bytes == null) {
            return reference(null, position);
        }
        ClassInfo c = ClassInfos.of(bytes);
        int n = java.lang.reflect.Array.getLength(bytes);
        boolean equal = Replicas.position(Replicas.find(bytes)) != position && DurableGraph.allocator().contains(position)
            && Nvm.getInt(position + Layout.CLASS_INDEX) == c.index && Nvm.getInt(position + Layout.LENGTH) == n
            && Nvm.equal(bytes, c.elementBase, 0, position + Layout.DATA, n);
        return equal ? null : reference(bytes, position);
    }

    private void elements(Object o, long at, ClassInfo c) {
        int n = java.lang.reflect.Array.getLength(o);
        if (Nvm.getInt(at + Layout.LENGTH) != n) {
            found.add(name(o, at) + ": length " + Nvm.getInt(at + Layout.LENGTH) + " instead of " + n);
            return;
        }
        int bytes = ClassInfo.bytes(c.element);
        for (int i = 0; i < n && found.size() < MOST; i++) {
            String bad = value(o, c.elementAt(i), at + Layout.DATA + (long) i * bytes, c.element);
            if (bad != null) {
                found.add(name(o, at) + "[" + i + "]" + bad);
            }
        }
    }

    private static String name(Object o, long at) {
        return o.getClass().getName() + " at " + at;
    }

    /** What is wrong with one field or element; null: nothing. */
    private String value(Object o, long dram, long at, char type) {
        if (type == ClassInfo.REFERENCE) {
            return reference(U.getReference(o, dram), Nvm.getLong(at));
        }
        long now = Slots.bits(o, dram, type);
        long kept = Nvm.getBits(at, ClassInfo.bytes(type));
        return now == kept ? null : " is " + now + ", in the replica " + kept;
    }
}
