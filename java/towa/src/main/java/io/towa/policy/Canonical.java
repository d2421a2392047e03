package io.towa.policy;

import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.io.ObjectInputStream;
import java.io.ObjectOutputStream;
import java.io.ObjectStreamClass;
import java.io.Serializable;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.lang.reflect.Modifier;
import java.util.Base64;
import java.util.function.Function;
import jdk.internal.misc.Unsafe;

/**
 * Objects that their own class finds again: a chronology of Joda-Time, a logger, a Scala symbol. Java's serialisation asks such a class (writeReplace, readResolve)
 * which object to have in place of the one that was read; where it gives the very one that was written, there is one for each value in every run.
 *
 * <p>An object is canonical if its class gives it in place of a shallow copy (readResolve), or of what it writes in its place (writeReplace). It is kept as Java
 * serialises it, and found again as Java reads it. The text: {@code CLASS<BASE64}.
 *
 * <p>Always true: the object itself is never changed by the question. A class that throws has no canonical objects.
 */
public final class Canonical {
    /** The most bytes that stand for one object: it is a name, not content. */
    private static final int MOST = 8 << 10;
    private static final Unsafe U = Unsafe.getUnsafe();

    private Canonical() {}

    /** Whether instances of {@code c} may be canonical. */
    public static boolean may(Class<?> c) {
        return finder(c) != null;
    }

    /** The method by which instances of {@code c} may be found again, as {@code Symbol.readResolve}; null: there is none. */
    static String finder(Class<?> c) {
        if (c.getClassLoader() == null || c.isArray() || !Serializable.class.isAssignableFrom(c)) {
            return null;
        }
        Method m = find(c, "writeReplace");
        m = m != null ? m : find(c, "readResolve");
        return m == null ? null : m.getDeclaringClass().getName() + "." + m.getName();
    }

    /** The method of that name that serialisation calls for an instance of {@code c}: its own, or one inherited that it can see. */
    private static Method find(Class<?> c, String name) {
        for (Class<?> k = c; k != null && k != Object.class; k = k.getSuperclass()) {
            Method m = Fields.method(k, name);
            if (m != null) {
                boolean seen = k == c || Modifier.isPublic(m.getModifiers()) || Modifier.isProtected(m.getModifiers())
                    || !Modifier.isPrivate(m.getModifiers()) && k.getPackage() == c.getPackage();
                return seen && m.getReturnType() == Object.class || seen && !m.getReturnType().isPrimitive() ? m : null;
            }
        }
        return null;
    }

    /** The text of {@code o}; null if it is not canonical. Runs code of its class. */
    public static String text(Object o) {
        Class<?> c = o.getClass();
        try {
            Object again;
            Method replace = find(c, "writeReplace");
            if (replace != null) {
                Object instead = call(replace, o);
                Method resolve = instead == null || instead == o ? null : find(instead.getClass(), "readResolve");
                again = resolve == null ? null : call(resolve, instead);
            } else {
                again = call(find(c, "readResolve"), copy(o));
            }
            if (again != o) {
                return null;
            }
            byte[] bytes = write(o);
            if (bytes.length > MOST || read(bytes, c.getClassLoader(), Function.identity()) != o) {
                return null;
            }
            return c.getName() + "<" + Base64.getEncoder().encodeToString(bytes);
        } catch (IOException | ReflectiveOperationException | RuntimeException | LinkageError e) {
            return null;
        }
    }

    private static Object call(Method m, Object o) throws ReflectiveOperationException {
        try {
            m.setAccessible(true);
            return m.invoke(o);
        } catch (InvocationTargetException e) {
            throw new ReflectiveOperationException(e);
        }
    }

    private static Object copy(Object o) throws InstantiationException {
        Object copy = U.allocateInstance(o.getClass());
        for (Class<?> k = o.getClass(); k != null && k != Object.class; k = k.getSuperclass()) {
            for (java.lang.reflect.Field f : k.getDeclaredFields()) {
                if (!Modifier.isStatic(f.getModifiers())) {
                    copy(o, copy, f.getType(), U.objectFieldOffset(k, f.getName()));
                }
            }
        }
        return copy;
    }

    private static void copy(Object from, Object to, Class<?> type, long at) {
        if (!type.isPrimitive()) {
            U.putReference(to, at, U.getReference(from, at));
        } else if (type == long.class || type == double.class) {
            U.putLong(to, at, U.getLong(from, at));
        } else if (type == int.class || type == float.class) {
            U.putInt(to, at, U.getInt(from, at));
        } else if (type == short.class || type == char.class) {
            U.putShort(to, at, U.getShort(from, at));
        } else {
            U.putByte(to, at, U.getByte(from, at));
        }
    }

    private static byte[] write(Object o) throws IOException {
        ByteArrayOutputStream bytes = new ByteArrayOutputStream();
        try (ObjectOutputStream out = new ObjectOutputStream(bytes)) {
            out.writeObject(o);
        }
        return bytes.toByteArray();
    }

    private static Object read(byte[] bytes, ClassLoader loader, Function<String, String> names) throws IOException, ClassNotFoundException {
        try (ObjectInputStream in = new ObjectInputStream(new ByteArrayInputStream(bytes)) {
            @Override
            protected Class<?> resolveClass(ObjectStreamClass d) throws IOException, ClassNotFoundException {
                try {
                    return Class.forName(names.apply(d.getName()), false, loader);
                } catch (ClassNotFoundException e) {
                    return super.resolveClass(d);
                }
            }
        }) {
            return in.readObject();
        }
    }

    /**
     * The object of a text.
     *
     * @param names from the name of a class when it was saved to its name today
     */
    public static Object of(String text, ClassLoader loader, Function<String, String> names) throws ReflectiveOperationException {
        try {
            return read(Base64.getDecoder().decode(text.substring(text.indexOf('<') + 1)), loader, names);
        } catch (IOException | RuntimeException e) {
            throw new ReflectiveOperationException(e);
        }
    }
}
