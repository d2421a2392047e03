package io.towa.graph;

import io.towa.PoolException;
import io.towa.PoolException.Reason;
import io.towa.agent.NumberedNames;
import io.towa.barrier.Enums;
import io.towa.barrier.Header;
import io.towa.medium.Nvm;
import io.towa.policy.Canonical;
import io.towa.policy.Statics;
import io.towa.policy.Values;
import io.towa.pool.Layout;
import java.lang.reflect.Field;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import jdk.internal.misc.Unsafe;

/**
 * Objects that are saved by name, because their identity means something: enum constants, classes, what static final fields hold ({@link Statics}), such as
 * {@code HashSet.PRESENT} or a Scala {@code Nil}, values of which this run's JDK has the rules ({@link Values}), and what its own class finds again ({@link Canonical}).
 *
 * <p>What static final fields hold is learnt when an instance of a class of that family is first met, so before any of them is looked at. The text of a named constant
 * is {@code CLASS#FIELD}, {@code CLASS=VALUE} or {@code CLASS<SERIALISED}.
 */
final class Constants {
    private static final Unsafe U = Unsafe.getUnsafe();

    /** Named objects by identity hash, open addressing, half full at most; read without a lock, replaced when it grows. */
    private static final class Table {
        final Object[] objects;
        final String[] names;

        Table(int length) {
            objects = new Object[length];
            names = new String[length];
        }

        void put(Object o, String name) {
            int i = System.identityHashCode(o) & objects.length - 1;
            while (objects[i] != null) {
                i = i + 1 & objects.length - 1;
            }
            names[i] = name;
            U.storeFence();
            objects[i] = o;
        }
    }

    private static volatile Table table = new Table(1 << 12);
    /** And the lock for what is entered. */
    private static final HashMap<Class<?>, Holder> HOLDERS = new HashMap<>();
    private static int count;

    private Constants() {}

    /** The static fields of one class that may hold constants. */
    static final class Holder {
        private final Class<?> type;
        private final Field[] fields;
        private final Object[] bases;
        private final long[] offsets;
        /** All that they will ever hold is known. */
        private volatile boolean done;

        private Holder(Class<?> type) {
            this.type = type;
            List<Field> may = new ArrayList<>();
            Field[] all = type.getDeclaredFields();
            for (int i = 0; i < all.length; i++) {
                if (Statics.mayHold(all[i])) {
                    may.add(all[i]);
                }
            }
            fields = may.toArray(new Field[0]);
            bases = new Object[fields.length];
            offsets = new long[fields.length];
            for (int i = 0; i < fields.length; i++) {
                bases[i] = U.staticFieldBase(fields[i]);
                offsets[i] = U.staticFieldOffset(fields[i]);
            }
            done = fields.length == 0;
        }

        /** Whether its initialiser has stored nothing yet. Reading a field by its offset does not run it. */
        private boolean isUntouched() {
            for (int i = 0; i < offsets.length; i++) {
                if (U.getReferenceVolatile(bases[i], offsets[i]) != null) {
                    return false;
                }
            }
            return U.shouldBeInitialized(type);
        }

        private boolean holds(Object o) {
            for (int i = 0; i < offsets.length; i++) {
                if (U.getReferenceVolatile(bases[i], offsets[i]) == o) {
                    return true;
                }
            }
            return false;
        }

        /** Under the lock. */
        private void learn() {
            boolean initialised = !U.shouldBeInitialized(type);
            for (int i = 0; i < offsets.length; i++) {
                Object o = U.getReferenceVolatile(bases[i], offsets[i]);
                if (o != null && Statics.isConstant(o, type) && name(o) == null) {
                    enter(o, type.getName() + "#" + fields[i].getName());
                }
            }
            done = initialised;
        }
    }

    /**
     * Learns the constants that instances of {@code c} may be, or refer to.
     *
     * @return who may hold more later: a class whose initialiser runs, or has not run
     */
    static Holder[] learn(Class<?> c) {
        List<Class<?>> types = Statics.holders(c);
        Holder[] all = new Holder[types.size()];
        synchronized (HOLDERS) {
            for (int i = 0; i < all.length; i++) {
                all[i] = HOLDERS.get(types.get(i));
                if (all[i] == null) {
                    all[i] = new Holder(types.get(i));
                    HOLDERS.put(types.get(i), all[i]);
                }
            }
        }
        return learn(all);
    }

    /** At each promotion, so that nothing is done while nothing has happened. */
    private static Holder[] learn(Holder[] left) {
        boolean same = true;
        for (int i = 0; i < left.length && same; i++) {
            same = !left[i].done && left[i].isUntouched();
        }
        if (same) {
            return left;
        }
        List<Holder> still = new ArrayList<>();
        synchronized (HOLDERS) {
            for (int i = 0; i < left.length; i++) {
                if (!left[i].done) {
                    left[i].learn();
                }
                if (!left[i].done) {
                    still.add(left[i]);
                }
            }
        }
        return still.toArray(new Holder[0]);
    }

    private static void enter(Object o, String name) {
        Header.restore(o, Enums.hash(name));
        Table t = table;
        if (2 * ++count > t.objects.length) {
            Table larger = new Table(2 * t.objects.length);
            for (int i = 0; i < t.objects.length; i++) {
                if (t.objects[i] != null) {
                    larger.put(t.objects[i], t.names[i]);
                }
            }
            t = larger;
        }
        t.put(o, name);
        table = t;
    }

    /**
     * Gives the constant {@code o}, which is about to become durable, the identity hash that follows from its name, if it has none: so it has the same in every run, and
     * in whatever pool, also if its replica there has not been loaded yet. Hash tables that it is a key in need not be made anew then.
     */
    static void identify(Object o, ClassInfo info) {
        if (!Header.marked(o)) {
            if (info.form == Layout.FORM_CLASS) {
                identifyMirror((Class<?>) o);
                return;
            }
            Header.restore(o, Enums.hash(info.recordName() + ' ' + new String(text(o, info), StandardCharsets.UTF_8)));
        }
    }

    /** Gives the mirror of {@code c} the identity hash that follows from its name, if it has none; whether it has that. */
    static boolean identifyMirror(Class<?> c) {
        Enums.identify(c);
        return System.identityHashCode(c) == Enums.hash(c.getName());
    }

    /** Whether the replica at {@code at}, which may be another than the one that {@code o} has, stands for the constant {@code o}. */
    static boolean isAt(long at, Object o, ClassInfo info) {
        byte[] text = text(o, info);
        return Nvm.getInt(at + Layout.CLASS_INDEX) == info.index && Nvm.getInt(at + Layout.LENGTH) == text.length
            && Arrays.equals(Nvm.getBytes(at + Layout.DATA, text.length), text);
    }

    /** Whether the constant {@code o} is the only object that its text stands for. */
    static boolean isOnly(Object o, ClassInfo info) {
        return info.form != Layout.FORM_NAMED || name(o) != null || Values.of(Values.text(o)) == o;
    }

    /** The name under which {@code o} is known; null if it is not in the table. */
    private static String name(Object o) {
        if (!Header.marked(o)) {
            // All that are named have an identity hash since they were entered; what is new is not to get one here.
            return null;
        }
        Table t = table;
        for (int i = System.identityHashCode(o) & t.objects.length - 1; t.objects[i] != null; i = i + 1 & t.objects.length - 1) {
            if (t.objects[i] == o) {
                return t.names[i];
            }
        }
        return null;
    }

    /** Whether {@code o} is kept by its name, not by its fields. */
    static boolean isNamed(Object o, ClassInfo info) {
        Holder[] left = info.unlearnt;
        if (left.length != 0) {
            info.unlearnt = learn(left);
        }
        if (name(o) != null) {
            return true;
        }
        return info.isValue ? Values.isNamed(o) : info.mayBeCanonical && canonical(o);
    }

    /** A question to a class that a thread has asked, and not been answered yet. */
    private record Question(Thread by, Class<?> to, Question next) {}

    /** Under {@link #HOLDERS}: all of them. */
    private static Question questions;

    /** Whether this thread is being answered by {@code c}. */
    private static boolean asks(Class<?> c) {
        synchronized (HOLDERS) {
            for (Question q = questions; q != null; q = q.next) {
                if (q.by == Thread.currentThread() && q.to == c) {
                    return true;
                }
            }
            return false;
        }
    }

    private static void ask(Class<?> c) {
        synchronized (HOLDERS) {
            questions = new Question(Thread.currentThread(), c, questions);
        }
    }

    private static void answered(Class<?> c) {
        synchronized (HOLDERS) {
            questions = without(questions, c);
        }
    }

    private static Question without(Question from, Class<?> c) {
        boolean found = from.by == Thread.currentThread() && from.to == c;
        return found ? from.next : new Question(from.by, from.to, without(from.next, c));
    }

    /**
     * Asks the class of {@code o} whether there is one such object for each value. It may store, and what it stores to may be durable. An instance that it makes for its
     * answer, and stores (Guava's HashBiMap: its other direction), is a new one: to ask what becomes of that would not end.
     */
    private static boolean canonical(Object o) {
        Class<?> c = o.getClass();
        if (asks(c)) {
            return false;
        }
        String text;
        ask(c);
        Gate.enterAgain();
        try {
            text = Canonical.text(o);
        } finally {
            Gate.exitAgain();
            answered(c);
        }
        if (text == null) {
            return false;
        }
        synchronized (HOLDERS) {
            if (name(o) == null) {
                enter(o, text);
            }
        }
        return true;
    }

    /** Why {@code o}, which is kept by its name, cannot be: it has a state that its name does not tell. Null: it can. */
    static String refusal(Object o) {
        String name = name(o);
        if (name == null || name.indexOf('#') < 0 || o.getClass().isArray()) {
            return null;
        }
        return Statics.refusal(name, o.getClass());
    }

    /** The class that a constant's text names: itself, or the one whose static field holds it; null: none of this program's. */
    static Class<?> mirrored(Object o, ClassInfo info) {
        if (info.form == Layout.FORM_CLASS) {
            return (Class<?>) o;
        }
        String name = name(o);
        int end = name == null ? -1 : name.indexOf('#');
        if (end < 0 || !NumberedNames.mayBe(name)) {
            return null;
        }
        synchronized (HOLDERS) {
            for (Holder h : HOLDERS.values()) {
                // Of several classes of that name, of other loaders, the one that holds it.
                if (h.type.getName().length() == end && name.startsWith(h.type.getName()) && h.holds(o)) {
                    return h.type;
                }
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
                s = s != null ? s : Values.text(o);
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
    static Object resolve(String s, int form, Class<?> type, Renames names) {
        try {
            switch (form) {
                case Layout.FORM_ENUM:
                    return constant(type, s);
                case Layout.FORM_CLASS:
                    String today = names.descriptor(s);
                    if (today == null) {
                        throw new PoolException(Reason.CHANGED_CLASS, "the pool refers to class " + Renames.className(s) + ", which is not there: " + Renames.LOST);
                    }
                    return classOf(today, names.loader());
                default:
                    return named(s, names);
            }
        } catch (ReflectiveOperationException | LinkageError | IllegalArgumentException | IndexOutOfBoundsException e) {
            String what = form == Layout.FORM_ENUM ? s + " of " + type.getName() : s.indexOf('<') < 0 ? s : "a " + s.substring(0, s.indexOf('<'));
            throw new PoolException(Reason.CHANGED_CLASS, "the pool refers to " + what
                + ", which this program does not have; bring it back, or map it to its new name", e);
        }
    }

    private static Object named(String s, Renames names) throws ReflectiveOperationException {
        int end = 0;
        while (end < s.length() && "#=<".indexOf(s.charAt(end)) < 0) {
            end++;
        }
        if (s.charAt(end) == '=') {
            Object o = Values.of(s);
            if (o == null) {
                throw new ReflectiveOperationException(s);
            }
            return o;
        }
        if (s.charAt(end) == '<') {
            Object o = Canonical.of(s, names.loader(), names::name);
            remember(o, s);
            return o;
        }
        Class<?> c = names.load(s.substring(0, end));
        Field f = c.getDeclaredField(s.substring(end + 1));
        if (!Statics.mayHold(c) || !Statics.mayHold(f)) {
            throw new NoSuchFieldException(s);
        }
        U.ensureClassInitialized(c);
        Object o = U.getReference(U.staticFieldBase(f), U.staticFieldOffset(f));
        if (o != null && !Statics.isConstant(o, c)) {
            throw new NoSuchFieldException(s);
        }
        // The class of that field may not have been met in this run.
        remember(o, c.getName() + s.substring(end));
        return o;
    }

    private static void remember(Object o, String name) {
        synchronized (HOLDERS) {
            if (o != null && name(o) == null) {
                enter(o, name);
            }
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
