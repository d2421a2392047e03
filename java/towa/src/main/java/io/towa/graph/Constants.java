package io.towa.graph;

import io.towa.PoolException;
import io.towa.PoolException.Reason;
import io.towa.barrier.Header;
import io.towa.medium.Nvm;
import io.towa.pool.Layout;
import java.lang.reflect.Field;
import java.lang.reflect.Modifier;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import jdk.internal.misc.Unsafe;

/**
 * Objects that are saved by name, because their identity means something: enum constants, classes, and the JDK's own sentinels, such as
 * {@code HashSet.PRESENT} or {@code ArrayList.DEFAULTCAPACITY_EMPTY_ELEMENTDATA}, which collections compare with {@code ==}.
 *
 * <p>A sentinel is an object that a static final field of a JDK class in java.util, java.time or java.math refers to; they are learnt when the
 * class, or one nested in the same, is first met, so before any of its instances is looked at.
 */
final class Constants {
    private static final Unsafe U = Unsafe.getUnsafe();
    private static final Object[] OBJECTS = new Object[1 << 12];
    private static final String[] NAMES = new String[OBJECTS.length];
    private static final java.util.HashSet<Class<?>> LEARNT = new java.util.HashSet<>();
    private static int count;

    private Constants() {}

    /** Learns the sentinels of {@code c} and of the class around it. */
    static void learn(Class<?> c) {
        if (!hasSentinels(c)) {
            return;
        }
        synchronized (OBJECTS) {
            for (Class<?> k = c; k != null && k != Object.class; k = k.getSuperclass()) {
                learnOne(k);
                learnOne(outermost(k));
            }
        }
    }

    /** Whether sentinels are learnt of this class, and so may be asked for by a pool: of others no static field is read. */
    private static boolean hasSentinels(Class<?> c) {
        String name = c.getName();
        return c.getClassLoader() == null && !c.isArray() && !c.isPrimitive()
            && (name.startsWith("java.util.") || name.startsWith("java.time.") || name.startsWith("java.math."));
    }

    private static boolean mayHoldSentinel(Field f) {
        return Modifier.isStatic(f.getModifiers()) && Modifier.isFinal(f.getModifiers()) && !f.getType().isPrimitive() && f.getType() != String.class;
    }

    private static Class<?> outermost(Class<?> c) {
        Class<?> k = c;
        while (k.getEnclosingClass() != null) {
            k = k.getEnclosingClass();
        }
        return k;
    }

    private static void learnOne(Class<?> c) {
        if (!LEARNT.add(c) || U.shouldBeInitialized(c)) {
            return;
        }
        Field[] fields = c.getDeclaredFields();
        for (int i = 0; i < fields.length; i++) {
            Field f = fields[i];
            if (!mayHoldSentinel(f)) {
                continue;
            }
            Object o = U.getReference(U.staticFieldBase(f), U.staticFieldOffset(f));
            if (o != null && isSentinel(o) && name(o) == null && count < OBJECTS.length / 2) {
                enter(o, c.getName() + "#" + f.getName());
            }
        }
    }

    private static boolean isSentinel(Object o) {
        if (o.getClass().isArray()) {
            return java.lang.reflect.Array.getLength(o) == 0;
        }
        return !(o instanceof String) && !(o instanceof Enum) && !(o instanceof Class) && !(o instanceof Number && o.getClass().getName().startsWith("java.lang."));
    }

    private static void enter(Object o, String name) {
        Header.restore(o, hash(name));
        int i = System.identityHashCode(o) & OBJECTS.length - 1;
        while (OBJECTS[i] != null) {
            i = i + 1 & OBJECTS.length - 1;
        }
        NAMES[i] = name;
        U.storeFence();
        OBJECTS[i] = o;
        count++;
    }

    /**
     * Gives the constant {@code o}, which is about to become durable, the identity hash that follows from its name, if it has none: so it has the same in every run, and
     * in whatever pool, also if its replica there has not been loaded yet. Hash tables that it is a key in need not be made anew then.
     */
    static void identify(Object o, ClassInfo info) {
        if (!Header.marked(o)) {
            Header.restore(o, hash(info.recordName() + ' ' + new String(text(o, info), StandardCharsets.UTF_8)));
        }
    }

    private static int hash(String name) {
        int h = name.hashCode() * 0x9E3779B1;
        return Math.max(1, (h ^ h >>> 15) & 0x7fffffff);
    }

    /** Whether the replica at {@code at}, which may be another than the one that {@code o} has, stands for the constant {@code o}. */
    static boolean isAt(long at, Object o, ClassInfo info) {
        byte[] text = text(o, info);
        return Nvm.getInt(at + Layout.CLASS_INDEX) == info.index && Nvm.getInt(at + Layout.LENGTH) == text.length
            && Arrays.equals(Nvm.getBytes(at + Layout.DATA, text.length), text);
    }

    /** The name under which {@code o} is known; null if it is no sentinel. */
    static String name(Object o) {
        if (!Header.marked(o)) {
            // All sentinels have an identity hash since they were entered; what is new is not to get one here.
            return null;
        }
        for (int i = System.identityHashCode(o) & OBJECTS.length - 1; OBJECTS[i] != null; i = i + 1 & OBJECTS.length - 1) {
            if (OBJECTS[i] == o) {
                return NAMES[i];
            }
        }
        return null;
    }

    /** What a replica of a constant holds. */
    private static byte[] text(Object o, ClassInfo info) {
        String s;
        switch (info.form) {
            case Layout.FORM_ENUM:
                s = ((Enum<?>) o).name();
                break;
            case Layout.FORM_CLASS:
                s = ((Class<?>) o).descriptorString();
                break;
            default:
                s = name(o);
        }
        return s.getBytes(StandardCharsets.UTF_8);
    }

    static long replicaBytes(Object o, ClassInfo info) {
        return Layout.DATA + text(o, info).length;
    }

    /** Completes the replica of a constant. */
    static void write(long at, Object o, ClassInfo info) {
        byte[] text = text(o, info);
        Nvm.putInt(at + Layout.LENGTH, text.length);
        Nvm.putBytes(at + Layout.DATA, text);
    }

    /** What the replica of a constant at {@code at} says. */
    static String text(long at) {
        return new String(Nvm.getBytes(at + Layout.DATA, Nvm.getInt(at + Layout.LENGTH)), StandardCharsets.UTF_8);
    }

    /** The object that a constant's text stands for. */
    static Object resolve(String s, int form, Class<?> type, ClassLoader loader) {
        try {
            switch (form) {
                case Layout.FORM_ENUM:
                    return constant(type, s);
                case Layout.FORM_CLASS:
                    return classOf(s, loader);
                default:
                    int hash = s.indexOf('#');
                    Class<?> c = Class.forName(s.substring(0, hash), false, null);
                    Field f = c.getDeclaredField(s.substring(hash + 1));
                    if (!hasSentinels(c) || !mayHoldSentinel(f)) {
                        throw new NoSuchFieldException(s);
                    }
                    U.ensureClassInitialized(c);
                    Object o = U.getReference(U.staticFieldBase(f), U.staticFieldOffset(f));
                    if (o != null && !isSentinel(o)) {
                        throw new NoSuchFieldException(s);
                    }
                    // The class of that field may not have been met in this run.
                    synchronized (OBJECTS) {
                        if (o != null && name(o) == null && count < OBJECTS.length / 2) {
                            enter(o, s);
                        }
                    }
                    return o;
            }
        } catch (ReflectiveOperationException | LinkageError | IllegalArgumentException | IndexOutOfBoundsException e) {
            throw new PoolException(Reason.CHANGED_CLASS, "the pool refers to " + s + (form == Layout.FORM_ENUM ? " of " + type.getName() : "")
                + ", which this program does not have; bring it back, or map it to its new name", e);
        }
    }

    @SuppressWarnings({"unchecked", "rawtypes"})
    private static Object constant(Class<?> type, String name) {
        return Enum.valueOf((Class) type, name);
    }

    private static Class<?> classOf(String descriptor, ClassLoader loader) throws ClassNotFoundException {
        switch (descriptor.charAt(0)) {
            case 'L':
                return Class.forName(descriptor.substring(1, descriptor.length() - 1).replace('/', '.'), false, loader);
            case '[':
                return Class.forName(descriptor.replace('/', '.'), false, loader);
            default:
                return java.lang.invoke.MethodType.fromMethodDescriptorString("()" + descriptor, null).returnType();
        }
    }
}
