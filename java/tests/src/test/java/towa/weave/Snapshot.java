package towa.weave;

import java.lang.reflect.Array;
import java.lang.reflect.Field;
import java.lang.reflect.Modifier;
import java.util.ArrayList;
import java.util.List;

/** The values of an object's fields, or an array's elements. */
final class Snapshot {
    private Snapshot() {}

    static List<Object> of(Object o) throws Exception {
        List<Object> all = new ArrayList<>();
        if (o.getClass().isArray()) {
            for (int i = 0; i < Array.getLength(o); i++) all.add(Array.get(o, i));
            return all;
        }
        for (Class<?> c = o.getClass(); c != null; c = c.getSuperclass()) {
            for (Field f : c.getDeclaredFields()) {
                if (Modifier.isStatic(f.getModifiers())) continue;
                f.setAccessible(true);
                all.add(f.get(o));
            }
        }
        return all;
    }

    static boolean same(List<Object> a, List<Object> b) {
        for (int i = 0; i < a.size(); i++) {
            Object x = a.get(i), y = b.get(i);
            if (x != y && !((x instanceof Number || x instanceof Boolean || x instanceof Character) && x.equals(y))) return false;
        }
        return true;
    }
}
