package io.towa.policy;

import java.lang.reflect.Field;
import java.lang.reflect.Modifier;
import java.util.ArrayList;
import java.util.List;

/**
 * Where constants are looked for: objects that a static final field holds, and that programs compare by {@code ==}.
 *
 * <p>The classes that may hold constants of an instance of {@code c}: {@code c}, its superclasses and interfaces, and the classes around these. A constant is, of the
 * JDK's data classes, whatever such a field holds, but for numbers and strings; of all others an instance of the same family (of a class of the same nest, or one
 * that fits the holder's), a bare {@code Object}, or an empty array.
 */
public final class Statics {
    private Statics() {}

    /** The classes that may hold constants which instances of {@code c} are, or refer to. */
    public static List<Class<?>> holders(Class<?> c) {
        List<Class<?>> all = new ArrayList<>();
        Class<?> of = c;
        while (of.isArray()) {
            of = of.getComponentType();
        }
        for (Class<?> k = of; k != null && k != Object.class; k = k.getSuperclass()) {
            add(k, all);
            Class<?>[] interfaces = k.getInterfaces();
            for (int i = 0; i < interfaces.length; i++) {
                add(interfaces[i], all);
            }
        }
        return all;
    }

    private static void add(Class<?> c, List<Class<?>> all) {
        try {
            for (Class<?> k = c; k != null; k = k.getEnclosingClass()) {
                if (mayHold(k) && !all.contains(k)) {
                    all.add(k);
                }
            }
        } catch (LinkageError e) {
            // A class around it that is not there holds nothing.
        }
    }

    /** Whether the static fields of that class are read at all. Of the JDK, those of its data classes only: what a pool names is no reason to read others. */
    public static boolean mayHold(Class<?> c) {
        if (c.isArray() || c.isPrimitive()) {
            return false;
        }
        String name = c.getName();
        return c.getClassLoader() != null ? !name.startsWith("io.towa.")
            : name.startsWith("java.util.") || name.startsWith("java.time.") || name.startsWith("java.math.")
                || name.startsWith("java.lang.") && name.indexOf('.', 10) < 0;
    }

    public static boolean mayHold(Field f) {
        return Modifier.isStatic(f.getModifiers()) && Modifier.isFinal(f.getModifiers()) && !f.getType().isPrimitive() && f.getType() != String.class;
    }

    /** Whether {@code o}, which a static final field of {@code holder} holds, is a constant. */
    public static boolean isConstant(Object o, Class<?> holder) {
        Class<?> c = o.getClass();
        return c.isArray() ? java.lang.reflect.Array.getLength(o) == 0 : areConstants(c, holder);
    }

    /** Whether instances of {@code c}, which is no array, are constants if a static final field of {@code holder} holds them. */
    public static boolean areConstants(Class<?> c, Class<?> holder) {
        if (c == String.class || Enum.class.isAssignableFrom(c) || c == Class.class
            || Number.class.isAssignableFrom(c) && c.getName().startsWith("java.lang.") || c.isHidden()) {
            return false;
        }
        return holder.getClassLoader() == null || c == Object.class || holder.isAssignableFrom(c)
            || c.getClassLoader() != null && outermost(c) == outermost(holder);
    }

    private static Class<?> outermost(Class<?> c) {
        Class<?> k = c;
        try {
            for (Class<?> around = k.getEnclosingClass(); around != null; around = k.getEnclosingClass()) {
                k = around;
            }
        } catch (LinkageError e) {
            return k;
        }
        return k;
    }

    /** Why a constant of class {@code c}, which {@code name} (as {@code CLASS#FIELD}) finds, cannot be durable; null if it can. */
    public static String refusal(String name, Class<?> c) {
        Field state = state(c);
        return state == null ? null : "it is the constant " + name + ", and has a state that its name does not tell (field " + state.getName()
            + "): after a restart the program's constant would be another object; make the field final, or refer to it from a durable root";
    }

    /**
     * A field that can be changed after construction, and is data: a constant with one has a state that its name does not tell. Of the JDK's constants, none: they
     * cache at most. Null: there is none.
     */
    private static Field state(Class<?> c) {
        if (c.getClassLoader() == null) {
            return null;
        }
        for (Class<?> k = c; k != null && k.getClassLoader() != null; k = k.getSuperclass()) {
            Field[] fields = k.getDeclaredFields();
            for (int i = 0; i < fields.length; i++) {
                int m = fields[i].getModifiers();
                if (!Modifier.isStatic(m) && !Modifier.isFinal(m) && !Modifier.isTransient(m) && Fields.kept(fields[i], c)) {
                    return fields[i];
                }
            }
        }
        return null;
    }
}
