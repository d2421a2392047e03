package io.towa.barrier;

import java.lang.reflect.Field;
import java.lang.reflect.Modifier;

/**
 * Gives enum constants and classes the identity hash that follows from their names, when they are made: so it is the same in every run, and a hash table that has them as
 * keys, or keys whose hash stems from them, is right in each, whatever library it is of.
 *
 * <p>Always true: a constant or a class that has a hash already keeps it.
 */
public final class Enums {
    private Enums() {}

    /** At the end of the constructor of {@link Enum}. */
    public static void made(Enum<?> e) {
        Class<?> c = e.getClass();
        // A constant with a body has a class of its own, below the enum's.
        Class<?> of = c.getSuperclass() == Enum.class ? c : c.getSuperclass();
        Header.restore(e, hash(of.getName() + ' ' + e.name()));
    }

    /** When {@code c} has just been defined. To initialise a class the JVM itself asks for its hash. */
    public static void identify(Class<?> c) {
        if (!Header.marked(c)) Header.restore(c, hash(c.getName()));
    }

    /** The constants of {@code c}, if it is an enum whose initialiser has run before the constructor called {@link #made}. */
    public static void learn(Class<?> c) {
        if (!c.isEnum() || Header.U.shouldBeInitialized(c)) return;
        Field[] fields = c.getDeclaredFields();
        for (int i = 0; i < fields.length; i++) {
            if (!Modifier.isStatic(fields[i].getModifiers()) || !fields[i].isEnumConstant()) continue;
            Object o = Header.U.getReference(Header.U.staticFieldBase(fields[i]), Header.U.staticFieldOffset(fields[i]));
            if (o instanceof Enum) made((Enum<?>) o);
        }
    }

    /** The identity hash that follows from a name: 31 bits, not zero. */
    public static int hash(String name) {
        int h = name.hashCode() * 0x9E3779B1;
        return Math.max(1, (h ^ h >>> 15) & 0x7fffffff);
    }
}
