package io.towa.policy;

import io.towa.NotDurable;
import io.towa.agent.Woven;
import java.io.Externalizable;
import java.io.Serializable;
import java.lang.reflect.Field;
import java.lang.reflect.Method;
import java.lang.reflect.Modifier;

/**
 * Which fields of an object are part of its replica.
 *
 * <p>{@code transient} has two meanings. In a class that leaves its serial form to Java, it says that a value need not survive: it is left out. In a class that
 * writes its serial form itself (readObject, writeObject, readExternal, readResolve, writeReplace), it only says that Java is not to write the field, for the class
 * does: Guava, Eclipse Collections, fastutil and others keep their whole content so. There the field is data, and is kept. So is a final one in any
 * class: nothing could ever set it again. (Nodes of a library's structure have such: Java never serialises them, for the structure writes its entries itself.)
 *
 * <p>Always true: the answer follows from the class files alone, so every run that has them, and {@code explain}, gives the same.
 */
public final class Fields {
    private Fields() {}

    /** Whether the instance field {@code f} of an instance of {@code c} is part of its replica. */
    public static boolean kept(Field f, Class<?> c) {
        return leftOut(f, c) == null;
    }

    /** Why the field is not part of the replica of an instance of {@code c}; null: it is. */
    public static String leftOut(Field f, Class<?> c) {
        Class<?> in = f.getDeclaringClass();
        if (in.getClassLoader() == null) {
            return Woven.leftOut(in, f.getName()) ? "a cache of the JDK, or something of this run only" : null;
        }
        if (f.isAnnotationPresent(NotDurable.class)) {
            return "@NotDurable";
        }
        if (Memos.isMemo(f, c)) {
            return "remembers the hash code, which may be another in the next run";
        }
        if (!Modifier.isTransient(f.getModifiers()) || writer(in, c) != null) {
            return null;
        }
        return Modifier.isFinal(f.getModifiers()) ? null : "transient, in a class without a serial form of its own";
    }

    /**
     * The method by which the class that declares a transient field, or one between it and {@code c}, writes its serial form itself, as
     * {@code HashMultimap.readObject}; null: there is none.
     */
    public static String writer(Class<?> declaring, Class<?> c) {
        for (Class<?> k = c; k != null && k != Object.class; k = k.getSuperclass()) {
            // Serialisation replaces the object as a whole: what its class inherits, too, is then written by that class.
            String by = replacing(k);
            if (by == null && declaring.isAssignableFrom(k)) {
                by = writing(k);
            }
            if (by != null) {
                return by;
            }
        }
        return null;
    }

    private static String writing(Class<?> k) {
        if (!Serializable.class.isAssignableFrom(k)) {
            return null;
        }
        if (Externalizable.class.isAssignableFrom(k) && declares(k, "readExternal", java.io.ObjectInput.class)) {
            return name(k, "readExternal");
        }
        if (declares(k, "readObject", java.io.ObjectInputStream.class)) {
            return name(k, "readObject");
        }
        return declares(k, "writeObject", java.io.ObjectOutputStream.class) ? name(k, "writeObject") : null;
    }

    private static String replacing(Class<?> k) {
        if (!Serializable.class.isAssignableFrom(k)) {
            return null;
        }
        return declares(k, "writeReplace") ? name(k, "writeReplace") : declares(k, "readResolve") ? name(k, "readResolve") : null;
    }

    private static String name(Class<?> k, String method) {
        return k.getName() + "." + method;
    }

    private static boolean declares(Class<?> k, String method, Class<?>... parameters) {
        return method(k, method, parameters) != null;
    }

    /** The instance method of that name that {@code k} itself declares; null: there is none. */
    static Method method(Class<?> k, String method, Class<?>... parameters) {
        try {
            Method m = k.getDeclaredMethod(method, parameters);
            return Modifier.isStatic(m.getModifiers()) || Modifier.isAbstract(m.getModifiers()) ? null : m;
        } catch (NoSuchMethodException | LinkageError e) {
            return null;
        }
    }
}
