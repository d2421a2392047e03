package io.towa.agent;

import java.lang.instrument.ClassDefinition;
import java.util.ArrayList;
import jdk.internal.misc.Unsafe;

/**
 * The barrier classes: a generated one, its group, for each class of the application or the JDK whose fields are stored to, one for each kind of array, and
 * the switches of {@code io.towa.barrier.Switch}. Their methods do nothing, or but store, until the group has a durable instance. Of a class, not of all within its
 * outermost one: iterators are next to never durable, their collections' barriers are on, and then C2 could not do without each iterator's object.
 *
 * <p>Always true: before {@link #ensureFlipped} returns, every store from now on to an instance of that class runs its barrier, also in
 * compiled loops that are running (redefinition is a safepoint). A group is turned on once and never off.
 */
public final class Groups {
    static final String PACKAGE = "io/towa/barrier/";
    private static final String PREFIX = PACKAGE + "G$";
    private static final String SWITCH = PACKAGE + "Switch$";
    /** Groups beyond that many share: it costs a needless barrier, never a missing one. */
    private static final int MOST = 4096;
    private static final String[] VALUES = {"java/lang/String", "java/lang/Integer", "java/lang/Long", "java/lang/Short", "java/lang/Byte",
        "java/lang/Character", "java/lang/Boolean", "java/lang/Double", "java/lang/Float", "java/lang/Number", "java/lang/Enum", "java/lang/Record",
        "java/math/BigInteger", "java/math/BigDecimal", "java/util/UUID", "java/util/Optional", "java/time/LocalDate", "java/time/LocalTime",
        "java/time/LocalDateTime", "java/time/Instant", "java/time/Duration", "java/time/ZoneOffset", "java/time/ZonedDateTime"};
    private static final NameMap<Integer> NUMBERS = new NameMap<Integer>();
    private static final Class<?>[] CLASSES = new Class<?>[MOST];
    private static final boolean[] ON = new boolean[MOST];
    private static byte[] off;
    private static byte[] on;
    private static int nameAt;
    private static int onNameAt;
    /** The first numbers are those of arrays, by kind. */
    private static final int ARRAYS = GroupBytes.KINDS.length();
    private static int count = ARRAYS;
    private static volatile boolean any;
    /** Redefinitions so far, for metrics. */
    private static long flips;
    private static final Object TURN = new Object();

    private Groups() {}

    /** Internal name of the barrier class for fields of the class of that internal name; defines it if need be. */
    static String nameFor(String owner) {
        synchronized (NUMBERS) {
            return defined(number(owner));
        }
    }

    /** The same for arrays of that kind, see {@link GroupBytes#KINDS}. */
    static String nameForArrays(int kind) {
        synchronized (NUMBERS) {
            return defined(kind);
        }
    }

    private static String defined(int n) {
        if (CLASSES[n] == null) define(n);
        return PREFIX + hex(n);
    }

    private static int number(String owner) {
        Integer known = NUMBERS.get(owner);
        if (known != null) return known.intValue();
        int n = count < MOST ? count++ : ARRAYS + (owner.hashCode() & Integer.MAX_VALUE) % (MOST - ARRAYS);
        NUMBERS.put(owner, Integer.valueOf(n));
        return n;
    }

    private static String hex(int n) {
        return Integer.toHexString(0x10000 | n).substring(1);
    }

    private static void define(int n) {
        byte[] bytes = bytes(n, ON[n]);
        CLASSES[n] = Unsafe.getUnsafe().defineClass((PREFIX + hex(n)), bytes, 0, bytes.length, null, null);
    }

    private static byte[] bytes(int n, boolean flipped) {
        if (n < ARRAYS) return GroupBytes.makeArray(PREFIX + hex(n), n, flipped);
        if (off == null) {
            off = GroupBytes.make(PREFIX + "0000", false);
            nameAt = GroupBytes.find(off, PREFIX + "0000");
        }
        if (flipped && on == null) {
            on = GroupBytes.make(PREFIX + "0000", true);
            onNameAt = GroupBytes.find(on, PREFIX + "0000");
        }
        byte[] b = (flipped ? on : off).clone();
        String hex = hex(n);
        int at = (flipped ? onNameAt : nameAt) + PREFIX.length();
        for (int i = 0; i < 4; i++) b[at + i] = (byte) hex.charAt(i);
        return b;
    }

    /** Is anything turned on at all? */
    public static boolean anyFlipped() {
        return any;
    }

    public static long flips() {
        synchronized (TURN) {
            return flips;
        }
    }

    /** To be called before an instance of the class becomes durable for the first time; cheap if it was called before. */
    public static void ensureFlipped(Class<?> c) {
        ensureFlipped(new Class<?>[] {c}, 1);
    }

    /** The same for the first {@code n} of several classes, with one redefinition for all. */
    public static void ensureFlipped(Class<?>[] classes, int n) {
        synchronized (TURN) {
            ArrayList<ClassDefinition> todo = new ArrayList<ClassDefinition>();
            ArrayList<Integer> numbers = new ArrayList<Integer>();
            if (!any) {
                todo.add(turned("Raw"));
                todo.add(turned("Static"));
                values(numbers);
            }
            for (int i = 0; i < n; i++) collect(classes[i], numbers);
            if (any && numbers.isEmpty()) return;
            synchronized (NUMBERS) {
                for (int i = 0; i < numbers.size(); i++) {
                    int k = numbers.get(i).intValue();
                    ON[k] = true;
                    if (CLASSES[k] != null) todo.add(new ClassDefinition(CLASSES[k], bytes(k, true)));
                }
            }
            redefine(todo, numbers);
        }
    }

    private static void redefine(ArrayList<ClassDefinition> todo, ArrayList<Integer> numbers) {
        ClassDefinition[] all = new ClassDefinition[todo.size()];
        for (int i = 0; i < all.length; i++) all[i] = todo.get(i);
        try {
            if (all.length != 0) Agent.instrumentation().redefineClasses(all);
        } catch (Throwable e) {
            synchronized (NUMBERS) {
                for (int i = 0; i < numbers.size(); i++) ON[numbers.get(i).intValue()] = false;
            }
            throw new IllegalStateException("the barriers could not be turned on", e);
        }
        any = true;
        flips++;
        Agent.sweepIfNeeded();
    }

    private static void collect(Class<?> c, ArrayList<Integer> numbers) {
        if (c.isArray()) {
            Class<?> e = c.getComponentType();
            char kind = e == boolean.class ? 'B' : e.isPrimitive() ? c.getName().charAt(1) : 'L';
            synchronized (NUMBERS) {
                add(GroupBytes.KINDS.indexOf(kind), numbers);
            }
            return;
        }
        for (; c != null && c != Object.class; c = c.getSuperclass()) {
            synchronized (NUMBERS) {
                String name = c.getName();
                // What stands after the slash in a hidden class' name is not in its class file.
                if (c.isHidden()) name = name.substring(0, name.lastIndexOf('/'));
                add(number(name.replace('.', '/')), numbers);
            }
        }
    }

    /** Classes whose fields are stored to in constructors only: barriers cost nothing there, so all are turned on at first. */
    private static void values(ArrayList<Integer> numbers) {
        synchronized (NUMBERS) {
            for (int i = 0; i < VALUES.length; i++) add(number(VALUES[i]), numbers);
        }
    }

    private static void add(int n, ArrayList<Integer> numbers) {
        Integer k = Integer.valueOf(n);
        if (!ON[n] && !numbers.contains(k)) numbers.add(k);
    }

    private static ClassDefinition turned(String kind) {
        try {
            return new ClassDefinition(Class.forName((SWITCH + kind).replace('/', '.'), false, null), GroupBytes.makeSwitch(kind));
        } catch (ClassNotFoundException e) {
            throw new IllegalStateException(e);
        }
    }
}
