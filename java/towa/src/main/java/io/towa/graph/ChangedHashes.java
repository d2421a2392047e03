package io.towa.graph;

import io.towa.policy.HashCodes;
import io.towa.pool.Layout;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.HashSet;
import java.util.IdentityHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import jdk.internal.misc.Unsafe;

/** Classes whose instances may have other hash codes than when the pool was saved, for their fields or their {@code hashCode()} have changed. */
final class ChangedHashes {
    private static final Unsafe U = Unsafe.getUnsafe();
    /** What has more objects within is taken to have one of such a class. */
    private static final int MOST = 256;

    static final ChangedHashes NONE = new ChangedHashes(new ClassMapping[0]);

    private final Set<Class<?>> classes = new HashSet<>();
    /** Whether a class has the hash code of the identity, and so nothing within its instances counts. */
    private final Map<Class<?>, Boolean> byIdentity = new HashMap<>();

    /** After the walk. */
    ChangedHashes(ClassMapping[] mappings) {
        for (int i = 1; i < mappings.length; i++) {
            ClassMapping m = mappings[i];
            if (m != null && m.mayMerge()) {
                classes.add(m.type);
            }
        }
    }

    boolean any() {
        return !classes.isEmpty();
    }

    /** Whether {@code key} is of such a class, or refers to an object of one. Then its hash code may be another, and it may be equal to another key. */
    boolean within(Object key) {
        if (key == null || classes.isEmpty()) {
            return false;
        }
        ClassInfo c = ClassInfos.of(key);
        boolean plain = c.form != Layout.FORM_ARRAY && c.types.length == 0 || key instanceof String || byIdentity(key.getClass());
        if (plain || classes.contains(c.type)) {
            return classes.contains(c.type);
        }
        IdentityHashMap<Object, Object> met = new IdentityHashMap<>();
        List<Object> open = new ArrayList<>();
        for (Object o = key; o != null; o = open.isEmpty() ? null : open.removeLast()) {
            if (classes.contains(o.getClass()) || open.size() + met.size() > MOST) {
                return true;
            }
            if (met.put(o, o) == null) {
                referredTo(o, open, MOST);
            }
        }
        return false;
    }

    private boolean byIdentity(Class<?> c) {
        Boolean known = byIdentity.get(c);
        if (known == null) {
            known = HashCodes.isIdentity(c);
            byIdentity.put(c, known);
        }
        return known;
    }

    /** Adds what the fields or the elements of {@code o} refer to, until there are more than {@code most}. */
    static void referredTo(Object o, List<Object> into, int most) {
        ClassInfo c = ClassInfos.of(o);
        if (o instanceof Object[] a) {
            for (int i = 0; i < a.length && into.size() <= most; i++) {
                if (a[i] != null) {
                    into.add(a[i]);
                }
            }
        } else if (c.form == Layout.FORM_OBJECT) {
            for (int i = 0; i < c.types.length && into.size() <= most; i++) {
                Object to = c.types[i] == ClassInfo.REFERENCE ? U.getReference(o, c.dram[i]) : null;
                if (to != null) {
                    into.add(to);
                }
            }
        }
    }
}
