package towa.weave;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.towa.NotDurableException;
import io.towa.Towa;
import java.lang.invoke.MethodHandle;
import java.lang.invoke.MethodHandles;
import java.lang.invoke.VarHandle;
import java.lang.reflect.Array;
import java.lang.reflect.Field;
import java.util.*;
import java.util.concurrent.*;
import java.util.concurrent.atomic.*;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.DynamicTest;
import org.junit.jupiter.api.TestFactory;

/** A reference to what cannot be durable, written in every way: the write throws, and has not happened. */
class RefusalTest {
    interface Write { void run(Object v) throws Throwable; }

    static class Cell { Object r; volatile Object w; }

    private static final Thread BAD = new Thread();
    private static final MethodHandles.Lookup L = MethodHandles.lookup();
    private final List<DynamicTest> all = new ArrayList<>();

    @BeforeAll
    static void open() throws Exception {
        Fixture.open();
    }

    private void add(String name, Object target, Write w) {
        all.add(DynamicTest.dynamicTest(name, () -> check(name, target, w)));
    }

    private static void check(String name, Object target, Write w) throws Throwable {
        Fixture.hold(target);
        // Cold, and compiled.
        for (int i = 0; i < 20_000; i++) {
            if (i > 10 && i < 19_990) {
                w.run("good");
                continue;
            }
            String before = target instanceof Collection || target instanceof Map ? target.toString() : null;
            List<Object> fields = Snapshot.of(target);
            NotDurableException e = assertThrows(NotDurableException.class, () -> w.run(BAD), name);
            assertTrue(e.path().contains("Thread"), e.path());
            if (before != null) assertEquals(before, target.toString(), name);
            else assertTrue(Snapshot.same(fields, Snapshot.of(target)), name + ": the write happened");
            Fixture.same(target, name);
        }
        assertEquals(List.of(), Towa.verify(), name);
        assertFalse(Towa.isDurable(BAD));
    }

    @TestFactory
    List<DynamicTest> theWriteDoesNotHappen() throws Exception {
        Cell c = new Cell();
        Object[] a = new Object[4];
        add("field", c, v -> c.r = v);
        add("volatile field", c, v -> c.w = v);
        add("array element", a, v -> a[1] = v);
        add("arraycopy", a, v -> System.arraycopy(new Object[] {"x", v}, 0, a, 1, 2));
        add("Arrays.fill", a, v -> Arrays.fill(a, v));
        add("Array.set", a, v -> Array.set(a, 2, v));
        add("List.toArray(T[])", a, v -> Arrays.asList(v, "x").toArray(a));
        Field r = Cell.class.getDeclaredField("r"), w = Cell.class.getDeclaredField("w");
        add("Field.set", c, v -> r.set(c, v));
        add("Field.set volatile", c, v -> w.set(c, v));
        MethodHandle setter = L.unreflectSetter(r), element = MethodHandles.arrayElementSetter(Object[].class);
        add("MethodHandle setter", c, v -> setter.invoke(c, v));
        add("array setter", a, v -> element.invoke(a, 2, v));
        VarHandle h = L.findVarHandle(Cell.class, "w", Object.class), e = MethodHandles.arrayElementVarHandle(Object[].class);
        add("VarHandle.set", c, v -> h.set(c, v));
        add("VarHandle.setOpaque", c, v -> h.setOpaque(c, v));
        add("VarHandle.setRelease", c, v -> h.setRelease(c, v));
        add("VarHandle.setVolatile", c, v -> h.setVolatile(c, v));
        add("VarHandle.getAndSet", c, v -> { Object old = h.getAndSet(c, v); });
        add("VarHandle.compareAndSet", c, v -> h.compareAndSet(c, c.w, v));
        add("VarHandle.compareAndExchange", c, v -> { Object old = h.compareAndExchange(c, c.w, v); });
        add("VarHandle.weakCompareAndSet", c, v -> h.weakCompareAndSetPlain(c, c.w, v));
        add("array VarHandle.setVolatile", a, v -> e.setVolatile(a, 1, v));
        AtomicReferenceFieldUpdater<Cell, Object> u = AtomicReferenceFieldUpdater.newUpdater(Cell.class, Object.class, "w");
        add("AtomicReferenceFieldUpdater", c, v -> u.set(c, v));
        AtomicReference<Object> ref = new AtomicReference<>();
        add("AtomicReference.set", ref, v -> ref.set(v));
        add("AtomicReference.lazySet", ref, v -> ref.lazySet(v));
        add("AtomicReference.updateAndGet", ref, v -> ref.updateAndGet(x -> v));
        unsafe(c, a);
        collections();
        return all;
    }

    @SuppressWarnings({"removal", "deprecation"})
    private void unsafe(Cell c, Object[] a) throws Exception {
        Field f = sun.misc.Unsafe.class.getDeclaredField("theUnsafe");
        f.setAccessible(true);
        sun.misc.Unsafe u = (sun.misc.Unsafe) f.get(null);
        long at = u.objectFieldOffset(Cell.class.getDeclaredField("r"));
        add("Unsafe.putObject", c, v -> u.putObject(c, at, v));
        add("Unsafe.putObjectVolatile", c, v -> u.putObjectVolatile(c, at, v));
        add("Unsafe.putOrderedObject", c, v -> u.putOrderedObject(c, at, v));
        add("Unsafe.getAndSetObject", c, v -> u.getAndSetObject(c, at, v));
        add("Unsafe.compareAndSwapObject", c, v -> u.compareAndSwapObject(c, at, c.r, v));
        add("Unsafe.putObject array", a, v -> u.putObject(a, u.arrayBaseOffset(Object[].class), v));
    }

    private void collections() {
        ArrayList<Object> list = new ArrayList<>(List.of("a", "b"));
        add("ArrayList.set", list, v -> list.set(1, v));
        add("ArrayList.add", list, v -> { list.add(v); list.remove(2); });
        add("ArrayList.replaceAll", list, v -> list.replaceAll(x -> v));
        HashMap<Object, Object> map = new HashMap<>(Map.of("k", "v"));
        add("HashMap.put over a value", map, v -> map.put("k", v));
        add("HashMap.put", map, v -> { map.put("new", v); map.remove("new"); });
        add("HashMap.merge", map, v -> map.merge("k", v, (x, y) -> y));
        TreeMap<Object, Object> tree = new TreeMap<>(Map.of("k", "v"));
        add("TreeMap.put", tree, v -> tree.put("k", v));
        ConcurrentHashMap<Object, Object> ch = new ConcurrentHashMap<>(Map.of("k", "v"));
        add("ConcurrentHashMap.put over a value", ch, v -> ch.put("k", v));
        add("ConcurrentHashMap.put", ch, v -> { ch.put("new", v); ch.remove("new"); });
        ConcurrentLinkedQueue<Object> q = new ConcurrentLinkedQueue<>(List.of("a"));
        add("ConcurrentLinkedQueue.add", q, v -> { q.add(v); q.poll(); });
        ArrayDeque<Object> deque = new ArrayDeque<>(List.of("a"));
        add("ArrayDeque.addLast", deque, v -> { deque.addLast(v); deque.pollFirst(); });
    }
}
