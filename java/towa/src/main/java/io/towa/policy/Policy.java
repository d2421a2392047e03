package io.towa.policy;

import io.towa.agent.Woven;
import io.towa.pool.Layout;
import java.lang.reflect.Field;
import java.lang.reflect.Modifier;

/**
 * What can be durable: data. Application classes, records, enums, arrays, and of the JDK its values and collections. What stands for
 * something outside the heap (a thread, a file, native memory, code) cannot, and says why.
 *
 * <p>Every object has one of three fates, and none of them is silent:
 *
 * <pre>
 *   kept       by its fields ({@link Fields}); it comes back with the values that they had
 *   by name    a constant ({@link Statics}), a value of the JDK ({@link Values}), an object that its own serialisation finds again ({@link Canonical}): it is
 *              looked for at load, so that {@code ==} and what this run knows of it hold
 *   refused    here, at the store that would make it durable, with its name, the reason and a way out
 * </pre>
 */
public final class Policy {
    /** With everything that extends or implements them. */
    private static final Class<?>[] REFUSED = {Thread.class, ThreadGroup.class, ClassLoader.class, Module.class, ThreadLocal.class,
        java.lang.ref.Reference.class, java.lang.ref.ReferenceQueue.class, Process.class, Runtime.class, java.io.Closeable.class,
        java.util.concurrent.Executor.class, java.util.concurrent.Future.class, java.util.concurrent.CountDownLatch.class,
        java.util.concurrent.Semaphore.class, java.util.concurrent.CyclicBarrier.class, java.util.concurrent.Phaser.class,
        java.util.concurrent.Exchanger.class, java.util.concurrent.ForkJoinTask.class, java.util.concurrent.locks.ReadWriteLock.class,
        java.util.concurrent.locks.StampedLock.class, java.util.Timer.class, java.util.ServiceLoader.class, java.util.WeakHashMap.class,
        java.util.ResourceBundle.class, java.security.SecureRandom.class, java.util.concurrent.SynchronousQueue.class,
        java.util.concurrent.LinkedTransferQueue.class, StackWalker.class, ProcessBuilder.class};

    /** Why a lambda is refused. */
    static final String LAMBDA = "a lambda or hidden class cannot be found again by name; use a named class";

    private Policy() {}

    public static int form(Class<?> c) {
        if (c.isArray()) {
            return Layout.FORM_ARRAY;
        }
        if (c == Class.class) {
            return Layout.FORM_CLASS;
        }
        return isEnumConstant(c) ? Layout.FORM_ENUM : Layout.FORM_OBJECT;
    }

    /** Also for constants with a body, whose class extends the enum's. */
    public static boolean isEnumConstant(Class<?> c) {
        return Enum.class.isAssignableFrom(c) && c != Enum.class;
    }

    /**
     * Why no instance of {@code c} can be durable by its fields; null if they can. An instance that is found again by name can be durable all the same.
     *
     * @param woven whether the agent weaves: then a class that it could not weave is refused
     */
    public static String refusal(Class<?> c, boolean woven) {
        if (c.isArray()) {
            Class<?> of = c.getComponentType();
            return of.isPrimitive() || of.isArray() || of.getClassLoader() != null || !isRefused(of) ? null : refusal(of, woven);
        }
        if (c == Class.class || isEnumConstant(c)) {
            return null;
        }
        if (c.isHidden() || c.isSynthetic() && c.getName().contains("$$Lambda")) {
            return LAMBDA;
        }
        if (c.getName().equals("io.towa.graph.Unloaded")) {
            return "the value of this OnDemand was not loaded before its pool was closed";
        }
        if (isRefused(c)) {
            return c.getName() + " stands for something outside the program's data, or holds it; leave the field out (transient, or @NotDurable)";
        }
        // Of locks nothing is durable that is ever stored to, but that they are there.
        if (woven && !c.getName().startsWith("java.util.concurrent.locks.") && Woven.isUnwoven(c)) {
            return c.getName() + " could not be woven by the agent, so stores to it would not be seen" + Woven.whyUnwoven(c);
        }
        if (c.getClassLoader() == null && !Woven.mayHoldData(c)) {
            return c.getName() + " is not one of the JDK's data classes; keep what it was made from, or leave the field out (transient, or @NotDurable)";
        }
        return null;
    }

    /**
     * Why a field that is marked as a durable root cannot be one; null if it can.
     *
     * @param annotated not a root only because every static field is one: then it may be final, and recovery leaves it alone
     */
    public static String rootRefusal(Field f, boolean annotated) {
        String name = f.getDeclaringClass().getName() + "." + f.getName();
        if (!Modifier.isStatic(f.getModifiers())) {
            return name + " cannot be a durable root: it is a field of each object, and a root is static; what a root leads to is durable without an annotation";
        }
        if (annotated && Numbered.is(f.getDeclaringClass())) {
            return name + " cannot be a durable root: the compiler numbers anonymous and local classes, and the number may come to stand for another class; declare it in"
                + " a class with a name of its own";
        }
        if (!f.getType().isPrimitive() && !(annotated && Modifier.isFinal(f.getModifiers()))) {
            return null;
        }
        return name + " cannot be a durable root: it must be of reference type and not final, for recovery sets it";
    }

    /** Whether code of the program says which hash codes instances of {@code c} have. */
    public static boolean hashesItself(Class<?> c) {
        try {
            return c.getMethod("hashCode").getDeclaringClass().getClassLoader() != null;
        } catch (NoSuchMethodException | LinkageError e) {
            return true;
        }
    }

    /** Whether every instance of {@code c}, also of a class below it, is refused. */
    static boolean isRefused(Class<?> c) {
        for (int i = 0; i < REFUSED.length; i++) {
            if (REFUSED[i].isAssignableFrom(c)) {
                return true;
            }
        }
        return false;
    }
}
