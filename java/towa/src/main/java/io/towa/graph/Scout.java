package io.towa.graph;

import io.towa.agent.Groups;
import io.towa.pool.Layout;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.IdentityHashMap;
import jdk.internal.misc.Unsafe;

/**
 * Goes ahead of a promotion to find which classes it will meet, so that the barriers of all are turned on at once: each redefinition stops
 * the program. It may miss some (it stops after {@link #MOST} objects, and the graph may change): those are turned on when they are met.
 */
final class Scout {
    private static final Unsafe U = Unsafe.getUnsafe();
    private static final int MOST = 10_000;

    private final IdentityHashMap<Object, Boolean> seen = new IdentityHashMap<>();
    private final ArrayDeque<Object> left = new ArrayDeque<>();
    private final ArrayList<ClassInfo> infos = new ArrayList<>();
    private final ArrayList<Class<?>> classes = new ArrayList<>();

    private Scout() {}

    /** Barriers of the class of {@code first} are on when this returns. */
    static void turnOn(Object first) {
        Scout s = new Scout();
        s.meet(first);
        while (!s.left.isEmpty() && s.seen.size() < MOST) {
            s.look(s.left.poll());
        }
        Groups.ensureFlipped(s.classes.toArray(new Class<?>[0]), s.classes.size());
        for (int i = 0; i < s.infos.size(); i++) {
            s.infos.get(i).turnedOn = true;
        }
    }

    private void meet(Object o) {
        if (o == null || seen.put(o, Boolean.TRUE) != null) {
            return;
        }
        ClassInfo info = ClassInfos.of(o);
        if (info.refusal != null || Replicas.find(o) != 0) {
            return;
        }
        if (!info.turnedOn && !classes.contains(o.getClass())) {
            infos.add(info);
            classes.add(o.getClass());
        }
        left.add(o);
    }

    private void look(Object o) {
        ClassInfo c = ClassInfos.of(o);
        if (c.form == Layout.FORM_OBJECT && !Constants.isNamed(o, c)) {
            for (int f = 0; f < c.types.length && c.types[f] == ClassInfo.REFERENCE; f++) {
                meet(U.getReferenceOpaque(o, c.dram[f]));
            }
        } else if (c.form == Layout.FORM_ARRAY && c.element == ClassInfo.REFERENCE) {
            Object[] a = (Object[]) o;
            for (int k = 0; k < a.length && seen.size() < MOST; k++) {
                meet(a[k]);
            }
        }
    }
}
