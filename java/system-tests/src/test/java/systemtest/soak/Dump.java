package systemtest.soak;

import java.io.PrintWriter;
import java.lang.reflect.Array;
import java.lang.reflect.Field;
import java.lang.reflect.Method;
import java.lang.reflect.Modifier;
import java.nio.charset.StandardCharsets;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Comparator;
import java.util.HashMap;
import java.util.IdentityHashMap;
import java.util.List;
import java.util.Map;
import jdk.internal.misc.Unsafe;

/**
 * An object graph as text, object by object in the order of first sight: class, identity hash, all durable fields or elements. Two graphs are equal if and
 * only if their texts are.
 *
 * <p>It reads memory and calls no method of what it shows. Which fields are durable, and which objects stand for themselves by name, it asks the library.
 */
final class Dump {
    private static final Unsafe U = Unsafe.getUnsafe();
    private static final Method KEPT = library("policy.Fields", "kept", Field.class, Class.class);
    private static final Method INFO = library("graph.ClassInfos", "of", Object.class);
    private static final Method IS_NAMED = library("graph.Constants", "isNamed", Object.class, INFO.getReturnType());
    private static final Method TEXT = library("graph.Constants", "text", Object.class, INFO.getReturnType());
    private static final Method NAMED = library("graph.DurableGraph", "named");

    private final PrintWriter out;
    private final IdentityHashMap<Object, Integer> seen = new IdentityHashMap<>();
    private final ArrayDeque<Object> left = new ArrayDeque<>();
    private final Map<Class<?>, List<Field>> fields = new HashMap<>();

    Dump(PrintWriter out) {
        this.out = out;
    }

    private static Method library(String c, String name, Class<?>... arguments) {
        try {
            Method m = Class.forName("io.towa." + c).getDeclaredMethod(name, arguments);
            m.setAccessible(true);
            return m;
        } catch (ReflectiveOperationException e) {
            throw new ExceptionInInitializerError(e);
        }
    }

    /** All that {@code root} reaches and this dump has not shown yet. */
    void show(String title, Object root) throws ReflectiveOperationException {
        out.println(title + " = " + reference(root));
        while (!left.isEmpty()) {
            Object o = left.poll();
            StringBuilder line = new StringBuilder().append('#').append(seen.get(o)).append(' ').append(o.getClass().getName()).append(" hash ")
                .append(System.identityHashCode(o));
            if (o.getClass().isArray()) {
                array(line, o);
            } else {
                for (Field f : fieldsOf(o.getClass())) {
                    line.append(' ').append(f.getName()).append('=').append(field(o, f));
                }
            }
            out.println(line);
        }
    }

    private List<Field> fieldsOf(Class<?> c) throws ReflectiveOperationException {
        List<Field> all = fields.get(c);
        if (all == null) {
            all = new ArrayList<>();
            for (Class<?> k = c; k != null; k = k.getSuperclass()) {
                for (Field f : k.getDeclaredFields()) {
                    if (!Modifier.isStatic(f.getModifiers()) && (boolean) KEPT.invoke(null, f, c)) {
                        all.add(f);
                    }
                }
            }
            all.sort(Comparator.comparing((Field f) -> f.getDeclaringClass().getName()).thenComparing(Field::getName));
            fields.put(c, all);
        }
        return all;
    }

    private void array(StringBuilder line, Object a) throws ReflectiveOperationException {
        int n = Array.getLength(a);
        line.append(" of ").append(n).append(':');
        for (int i = 0; i < n; i++) {
            line.append(' ');
            if (a instanceof Object[] refs) {
                line.append(reference(refs[i]));
            } else if (a instanceof float[] f) {
                line.append(Float.floatToRawIntBits(f[i]));
            } else if (a instanceof double[] d) {
                line.append(Double.doubleToRawLongBits(d[i]));
            } else if (a instanceof char[] c) {
                line.append((int) c[i]);
            } else {
                line.append(Array.get(a, i));
            }
        }
    }

    private Object field(Object o, Field f) throws ReflectiveOperationException {
        long at = U.objectFieldOffset(f);
        Class<?> t = f.getType();
        if (!t.isPrimitive()) {
            return reference(U.getReference(o, at));
        }
        return t == boolean.class || t == byte.class ? U.getByte(o, at) : t == short.class || t == char.class ? U.getShort(o, at)
            : t == int.class || t == float.class ? U.getInt(o, at) : (Object) U.getLong(o, at);
    }

    private String reference(Object v) throws ReflectiveOperationException {
        if (v == null) {
            return "null";
        }
        if (v instanceof Enum<?> e) {
            return e.getDeclaringClass().getName() + "." + e.name();
        }
        if (v instanceof Class<?> c) {
            return "class " + c.getName();
        }
        if ((boolean) IS_NAMED.invoke(null, v, INFO.invoke(null, v))) {
            return new String((byte[]) TEXT.invoke(null, v, NAMED.invoke(null)), StandardCharsets.UTF_8);
        }
        Integer number = seen.get(v);
        if (number == null) {
            number = seen.size();
            seen.put(v, number);
            left.add(v);
        }
        return "#" + number;
    }
}
