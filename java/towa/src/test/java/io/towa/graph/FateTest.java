package io.towa.graph;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.towa.Durability;
import io.towa.NotDurable;
import io.towa.NotDurableException;
import io.towa.policy.Fate;
import io.towa.pool.Layout;
import java.io.Serializable;
import java.lang.reflect.Field;
import java.lang.reflect.Modifier;
import java.nio.charset.StandardCharsets;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Currency;
import java.util.List;
import java.util.Timer;
import java.util.concurrent.Semaphore;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import shop.Order;

/** What is explained is what happens. */
class FateTest {
    @SuppressWarnings("serial")
    static class Mixed implements Serializable {
        int a;
        transient int b;
        final transient int c = 1;
        @NotDurable
        Object d;
        String e;
    }

    private final Object[] all = new Object[1];

    @BeforeEach
    void open() {
        DirectPool.open(SavedPool.file(), 16 << 20, Durability.PROCESS);
        DirectPool.setRoot(all);
    }

    @AfterEach
    void close() {
        DirectPool.close();
    }

    private void check(Fate fate, Object o) {
        if (fate.kind() == Fate.Kind.REFUSED) {
            NotDurableException e = assertThrows(NotDurableException.class, () -> DirectPool.set(all, 0, o));
            assertTrue(e.getMessage().contains(fate.why()), e.getMessage() + "\n" + fate.why());
            return;
        }
        DirectPool.set(all, 0, o);
        boolean byName = DurableGraph.constantOrSelf(o, ClassInfos.of(o)).form > Layout.FORM_ARRAY;
        assertEquals(fate.kind() == Fate.Kind.RESOLVED, byName, o + ": " + fate);
    }

    @Test
    void ofInstances() {
        Timer timer = new Timer(true);
        for (Object o : new Object[] {new Mixed(), new ArrayList<>(), Thread.currentThread(), Thread.State.NEW, String.class, Currency.getInstance("EUR"), 5_000, "a",
            new Object[1], new Semaphore(1), timer, Path.of("a"), StandardCharsets.UTF_8, new Order.Price(2), new Thread[0]}) {
            check(Fate.of(o.getClass()), o);
        }
        timer.cancel();
        Runnable lambda = () -> {};
        check(Fate.of(lambda.getClass()), lambda);
    }

    static class Remembers {
        private int hash;
        private boolean hashIsZero;
        private int calls;
        int data = 5;

        @Override
        public int hashCode() {
            calls++;
            int h = hash;
            if (h == 0 && !hashIsZero) {
                h = data;
                hashIsZero = h == 0;
                hash = h;
            }
            return h;
        }

        @Override
        public boolean equals(Object o) {
            return o instanceof Remembers r && r.data == data;
        }
    }

    /** Minus one means "not computed yet": zero would not. */
    static class RemembersFromMinusOne {
        private int hash = -1;

        @Override
        public int hashCode() {
            if (hash == -1) {
                hash = 7;
            }
            return hash;
        }

        @Override
        public boolean equals(Object o) {
            return o instanceof RemembersFromMinusOne;
        }
    }

    static class Base {
        int hashMemo = 0;
        int number;
    }

    static class Derived extends Base {
        @Override
        public int hashCode() {
            if (hashMemo != 0) {
                return hashMemo;
            }
            hashMemo = 41 + number;
            return hashMemo;
        }

        @Override
        public boolean equals(Object o) {
            return o instanceof Derived d && d.number == number;
        }
    }

    /** Data that hashCode() happens to make, too. */
    static class NumbersItself {
        private static int next;
        private int hashNumber;

        int number() {
            if (hashNumber == 0) {
                hashNumber = ++next;
            }
            return hashNumber;
        }

        @Override
        public int hashCode() {
            if (hashNumber == 0) {
                hashNumber = ++next;
            }
            return hashNumber;
        }

        @Override
        public boolean equals(Object o) {
            return o == this;
        }
    }

    private static String leftOut(Class<?> c) {
        StringBuilder names = new StringBuilder();
        for (Class<?> k = c; k != Object.class; k = k.getSuperclass()) {
            for (Field f : k.getDeclaredFields()) {
                names.append(Fate.of(f, c).kind() == Fate.Kind.LEFT_OUT ? f.getName() + " " : "");
            }
        }
        return names.toString();
    }

    @Test
    void aRememberedHashCodeIsLeftOut() throws Exception {
        assertEquals("hash hashIsZero ", leftOut(Remembers.class));
        assertEquals("", leftOut(RemembersFromMinusOne.class));
        assertEquals("hashMemo ", leftOut(Derived.class));
        assertEquals("", leftOut(Base.class));
        assertEquals("", leftOut(NumbersItself.class));
        Derived d = new Derived();
        d.number = 5;
        d.hashCode();
        DirectPool.set(all, 0, d);
        assertEquals(List.of("number"), List.of(ClassInfos.of(d).fields).stream().map(Field::getName).toList());
    }

    @Test
    void ofConstants() throws Exception {
        check(Fate.ofConstant(Order.class.getDeclaredField("NONE")), Order.NONE);
        check(Fate.ofConstant(Order.class.getDeclaredField("FREE")), Order.FREE);
    }

    @Test
    void ofFields() {
        for (Class<?> c : List.of(Mixed.class, ArrayList.class, java.util.HashMap.class, Order.class)) {
            ClassInfo info = ClassInfos.of(c);
            List<Field> kept = List.of(info.fields);
            int n = 0;
            for (Class<?> k = c; k != null; k = k.getSuperclass()) {
                for (Field f : k.getDeclaredFields()) {
                    if (!Modifier.isStatic(f.getModifiers())) {
                        assertEquals(kept.contains(f), Fate.of(f, c).kind() != Fate.Kind.LEFT_OUT, f.toString());
                        n += kept.contains(f) ? 1 : 0;
                    }
                }
            }
            assertEquals(n, kept.size());
            assertFalse(kept.isEmpty());
        }
    }
}
