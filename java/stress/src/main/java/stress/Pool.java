package stress;

import io.towa.DurableRoot;
import io.towa.Towa;
import io.towa.TowaOptions;
import java.io.IOException;
import java.lang.reflect.Field;
import java.lang.reflect.Method;
import java.nio.file.Files;
import java.nio.file.Path;

/** The pool of one forked machine, slots of a durable array to hang objects into, and a look at replicas. */
final class Pool {
    @DurableRoot
    static Object[] anchors;

    private static final Method FIND = library("io.towa.graph.Replicas", "find", Object.class);
    private static final Method POSITION = library("io.towa.graph.Replicas", "position", long.class);
    private static final Method INFO = library("io.towa.graph.ClassInfos", "of", Object.class);
    private static final Method GET = library("io.towa.medium.Nvm", "getBits", long.class, int.class);
    private static final long DATA = 24;

    static {
        try {
            Path shm = Path.of("/dev/shm");
            Path file = Files.isDirectory(shm) ? Files.createTempFile(shm, "towa-stress", ".pool") : Files.createTempFile("towa-stress", ".pool");
            file.toFile().deleteOnExit();
            Towa.open(file, TowaOptions.DEFAULT.withCapacity(1 << 30));
            anchors = new Object[8];
            Runtime.getRuntime().addShutdownHook(new Thread(() -> file.toFile().delete()));
        } catch (IOException e) {
            throw new ExceptionInInitializerError(e);
        }
    }

    private Pool() {}

    private static Method library(String c, String name, Class<?>... arguments) {
        try {
            Method m = Class.forName(c).getDeclaredMethod(name, arguments);
            m.setAccessible(true);
            return m;
        } catch (ReflectiveOperationException e) {
            throw new ExceptionInInitializerError(e);
        }
    }

    static void anchor(int slot, Object o) {
        anchors[slot] = o;
    }

    /** Where the replica of {@code o} is; 0 for null, -1 if there is none or it is not complete. */
    static long position(Object o) {
        if (o == null) {
            return 0;
        }
        try {
            long word = (long) FIND.invoke(null, o);
            return word == 0 || (word & 1) != 0 ? -1 : (long) POSITION.invoke(null, word);
        } catch (ReflectiveOperationException e) {
            throw new AssertionError(e);
        }
    }

    /**
     * What an iteration has come to: 1 good; 0 bad; 2 cannot be told, since a later iteration took the slot, and the collector has dropped one of the {@code roots}.
     */
    static int verdict(boolean good, Object... roots) {
        if (good) {
            return 1;
        }
        for (Object root : roots) {
            boolean anchored = false;
            for (Object a : anchors) {
                anchored |= a == root;
            }
            if (!anchored && position(root) <= 0) {
                return 2;
            }
        }
        return 0;
    }

    private static long bits(long at, int bytes) {
        try {
            return (long) GET.invoke(null, at, bytes);
        } catch (ReflectiveOperationException e) {
            throw new AssertionError(e);
        }
    }

    /** The offsets of a class' fields in replicas, by name; asked for once. */
    private static final ClassValue<java.util.Map<String, Integer>> OFFSETS = new ClassValue<>() {
        @Override
        protected java.util.Map<String, Integer> computeValue(Class<?> c) {
            return new java.util.HashMap<>();
        }
    };

    private static int offset(Object o, String field) {
        java.util.Map<String, Integer> known = OFFSETS.get(o.getClass());
        synchronized (known) {
            Integer at = known.get(field);
            if (at == null) {
                try {
                    Object info = INFO.invoke(null, o);
                    Field[] fields = (Field[]) of(info, "fields");
                    int[] nvm = (int[]) of(info, "nvm");
                    for (int i = 0; i < fields.length; i++) {
                        known.put(fields[i].getName(), nvm[i]);
                    }
                } catch (ReflectiveOperationException e) {
                    throw new AssertionError(e);
                }
                at = known.get(field);
            }
            return at;
        }
    }

    private static Object of(Object info, String name) throws ReflectiveOperationException {
        Field f = info.getClass().getDeclaredField(name);
        f.setAccessible(true);
        return f.get(info);
    }

    static int savedInt(Object o, String field) {
        return (int) bits(position(o) + offset(o, field), 4);
    }

    /** Whether the replica's field refers to the replica of {@code v}, and that is complete. */
    static boolean saves(Object o, String field, Object v) {
        long there = position(v);
        return there >= 0 && bits(position(o) + offset(o, field), 8) == there;
    }

    static int savedInt(int[] a, int i) {
        return (int) bits(position(a) + DATA + 4L * i, 4);
    }

    static boolean saves(Object[] a, int i, Object v) {
        long there = position(v);
        return there >= 0 && bits(position(a) + DATA + 8L * i, 8) == there;
    }
}
