package towa.weave;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.towa.DurableRoot;
import io.towa.NotDurableException;
import io.towa.PoolException;
import io.towa.Towa;
import java.lang.invoke.MethodHandle;
import java.lang.invoke.MethodHandles;
import java.lang.invoke.VarHandle;
import java.lang.reflect.Field;
import java.lang.reflect.InvocationTargetException;
import java.nio.file.Path;
import java.util.List;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Test;

/** Stores to durable roots themselves, and setters as method handles often enough to be customized and compiled. */
class RootsTest {
    interface Put { void put(Object v) throws Throwable; }

    static class Pair { int a; Object b; Pair(int a, Object b) { this.a = a; this.b = b; } }

    @DurableRoot static Object root;
    @DurableRoot static volatile Object shared;
    static Object ordinary;

    @BeforeAll
    static void open() throws Exception {
        Fixture.open();
    }

    private static void check(String how, boolean isShared, Put p) throws Throwable {
        for (int i = 0; i < 20_000; i++) {
            Pair v = new Pair(i, "x");
            p.put(v);
            assertTrue(v == (isShared ? shared : root) && Towa.isDurable(v), how);
            Fixture.same(v, how);
            if ((i & 63) == 0) assertEquals(List.of(), Towa.verify(), how);
            if (i != 100 && i != 19_000) continue;
            assertThrows(NotDurableException.class, () -> p.put(new Pair(1, Thread.currentThread())), how);
            assertTrue(v == (isShared ? shared : root), how + ": the store did not happen");
        }
        p.put(null);
        assertEquals(List.of(), Towa.verify(), how);
    }

    @Test
    void everyWayToStoreToARoot() throws Throwable {
        check("putstatic", false, v -> root = v);
        check("putstatic volatile", true, v -> shared = v);
        Field f = RootsTest.class.getDeclaredField("root"), g = RootsTest.class.getDeclaredField("shared");
        check("Field.set", false, v -> f.set(null, v));
        check("Field.set volatile", true, v -> g.set(null, v));
        MethodHandles.Lookup l = MethodHandles.lookup();
        MethodHandle m = l.unreflectSetter(f);
        check("MethodHandle", false, v -> m.invoke(v));
        VarHandle h = l.findStaticVarHandle(RootsTest.class, "root", Object.class), w = l.findStaticVarHandle(RootsTest.class, "shared", Object.class);
        check("VarHandle.set", false, v -> h.set(v));
        check("VarHandle.setRelease", false, v -> h.setRelease(v));
        check("VarHandle.setVolatile", true, v -> w.setVolatile(v));
        check("VarHandle.compareAndSet", true, v -> assertTrue(w.compareAndSet(shared, v)));
        check("VarHandle.getAndSet", true, v -> { Object old = w.getAndSet(v); });
        Object o = new Pair(1, null);
        ordinary = o;
        assertTrue(!Towa.isDurable(o), "a static field without the annotation is no root");
    }

    @Test
    void setterTwoHundredThousandTimes() throws Throwable {
        Pair p = new Pair(0, null);
        Fixture.hold(p);
        MethodHandles.Lookup l = MethodHandles.lookup();
        MethodHandle a = l.findSetter(Pair.class, "a", int.class), b = l.findSetter(Pair.class, "b", Object.class);
        Object[] two = {"a", "b"};
        for (int i = 0; i < 200_000; i++) {
            a.invokeExact(p, i);
            b.invokeExact(p, two[i & 1]);
            Fixture.same(p, "call " + i);
        }
        assertEquals(199_999, p.a);
        assertNull(Fixture.holder[0] == p ? null : "held");
    }

    /** The program's classes once more, as an application server loads them. */
    public static class Reloaded {
        @DurableRoot static Object orders;

        public static Object get() { return orders; }

        public static void set(Object o) { orders = o; }
    }

    private static Class<?> load() throws Exception {
        String name = Reloaded.class.getName();
        byte[] bytes;
        try (var in = RootsTest.class.getResourceAsStream("RootsTest$Reloaded.class")) {
            bytes = in.readAllBytes();
        }
        return new ClassLoader(RootsTest.class.getClassLoader()) {
            @Override
            protected Class<?> loadClass(String n, boolean resolve) throws ClassNotFoundException {
                return n.equals(name) ? define() : super.loadClass(n, resolve);
            }

            private Class<?> define() {
                Class<?> c = findLoadedClass(name);
                return c != null ? c : defineClass(name, bytes, 0, bytes.length);
            }
        }.loadClass(name);
    }

    @Test
    void aRootOfTwoClassesOfOneNameIsRefused() throws Exception {
        Object orders = new Pair(1, "x");
        Reloaded.set(orders);
        Class<?> two = load();
        assertTrue(Towa.isDurable(orders));
        Field field = two.getDeclaredField("orders");
        field.setAccessible(true);
        Put[] ways = {v -> two.getMethod("set", Object.class).invoke(null, v), v -> two.getMethod("set", Object.class).invoke(null, v), v -> field.set(null, v)};
        for (Put way : ways) {
            Throwable e = assertThrows(Throwable.class, () -> way.put(new Pair(2, "y")));
            e = e instanceof InvocationTargetException ? e.getCause() : e;
            assertTrue(e instanceof PoolException, e.toString());
            assertNull(two.getMethod("get").invoke(null));
            for (String word : new String[] {"Reloaded.orders", RootsTest.class.getClassLoader().toString(), two.getClassLoader().toString(), "one loader"}) {
                assertTrue(e.getMessage().contains(word), e.getMessage());
            }
        }
        assertTrue(Reloaded.get() == orders);
        assertEquals(List.of(), Towa.verify());
    }

    /** By name: a class with a mark that is refused would keep this machine's pool from opening, once loaded. */
    private static final String PROGRAMS = "towa.weave.RootPrograms$";

    @Test
    void whatIsMarkedAndCanBeNoRootIsRefusedByName() throws Exception {
        for (String field : new String[] {"OfEachObject.names", "Primitive.count"}) {
            Path file = Fixture.file("marked");
            int[] status = new int[1];
            String out = AgentOptionsTest.run(status, PROGRAMS + field.substring(0, field.indexOf('.')), "", file.toString());
            assertTrue(status[0] != 0 && out.contains(PROGRAMS + field + " cannot be a durable root"), out);
            file.toFile().delete();
        }
    }

    @Test
    void aRootWhoseClassALoaderOfTheProgramHasLoadedGetsItsValue() throws Exception {
        Path file = Fixture.file("loader");
        for (String expected : new String[] {"found [x]", "found [x, x]"}) {
            int[] status = new int[1];
            String out = AgentOptionsTest.run(status, PROGRAMS + "OwnLoader", "", file.toString());
            assertTrue(status[0] == 0 && out.contains(expected), out);
        }
        file.toFile().delete();
    }

    @Test
    void anInitialiserThatOpensThePoolDoesNotOverwriteItsRoots() throws Exception {
        Path file = Fixture.file("late");
        String[] found = {"found [first] first [first] [fresh] [1] [default]", "found [first, more] again [first] [fresh] [11] [default, more]",
            "found [first, more, more] again [first] [fresh] [111] [default, more, more]"};
        for (String expected : found) {
            int[] status = new int[1];
            String out = AgentOptionsTest.run(status, PROGRAMS + "OpensItself", "", file.toString());
            assertTrue(status[0] == 0 && out.contains(expected), out);
        }
        file.toFile().delete();
    }
}
