package towa.weave;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNotEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.towa.OnDemand;
import io.towa.Towa;
import io.towa.medium.Nvm;
import java.lang.invoke.MethodHandles;
import java.lang.invoke.VarHandle;
import java.lang.reflect.Field;
import java.util.ArrayList;
import java.util.List;
import java.util.Objects;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicIntegerArray;
import java.util.concurrent.atomic.AtomicIntegerFieldUpdater;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.atomic.AtomicReference;
import java.util.concurrent.atomic.AtomicReferenceArray;
import java.util.function.Supplier;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.DynamicTest;
import org.junit.jupiter.api.TestFactory;

/**
 * A volatile or atomic write is durable before any thread can read it: at every store, write-back and fence of the pool that it makes, what
 * memory shows is looked at. While that is still the old value, the new one must be stored, written back and fenced.
 */
class VolatileFirstTest {
    interface Write { void run(int i) throws Throwable; }

    static class Cell { volatile int n; volatile Object r; }

    /** What a write has done to the pool while memory showed the old value. */
    private static final class Watch implements Nvm.Recorder {
        private final Thread writer = Thread.currentThread();
        private final Supplier<Object> shown;
        private final Object old;
        /** Where it stored last; whether that was before memory changed, and is written back, and fenced. */
        long last;
        boolean before, writtenBack, fenced;

        Watch(Supplier<Object> shown) {
            this.shown = shown;
            old = shown.get();
        }

        private boolean now() {
            return Thread.currentThread() == writer && Objects.equals(shown.get(), old);
        }

        @Override
        public void store(long at, long bits, int bytes) {
            if (Thread.currentThread() != writer) return;
            last = at;
            before = now();
            writtenBack = fenced = false;
        }

        @Override
        public void writeBack(long at, long bytes) {
            if (now() && at <= last && last < at + bytes) writtenBack = true;
        }

        @Override
        public void fence() {
            if (now() && writtenBack) fenced = true;
        }
    }

    private static final MethodHandles.Lookup L = MethodHandles.lookup();
    private final List<DynamicTest> all = new ArrayList<>();

    @BeforeAll
    static void open() throws Exception {
        Fixture.open();
    }

    private void add(String name, Object target, Supplier<Object> shown, Write w) {
        all.add(DynamicTest.dynamicTest(name, () -> check(name, target, shown, w)));
    }

    private static Watch watch(Supplier<Object> shown, Write w, int i) throws Throwable {
        Watch watch = new Watch(shown);
        Nvm.record(watch);
        try {
            w.run(i);
        } finally {
            Nvm.record(null);
        }
        return watch;
    }

    private static void check(String name, Object target, Supplier<Object> shown, Write w) throws Throwable {
        Fixture.hold(target);
        // Cold, and compiled.
        for (int i = 0; i < 20_000; i++) {
            if (i > 10 && i < 19_990) {
                w.run(i);
                continue;
            }
            Object old = shown.get();
            Watch watch = watch(shown, w, i);
            String when = name + ", call " + i;
            assertNotEquals(old, shown.get(), when);
            assertTrue(watch.last != 0 && watch.before, when + ": nothing was stored before memory showed it");
            assertTrue(watch.writtenBack && watch.fenced, when + ": it was not durable when memory showed it");
            Fixture.same(target, when);
        }
        assertEquals(List.of(), Towa.verify(), name);
    }

    @TestFactory
    List<DynamicTest> theReplicaFirst() throws Exception {
        Cell c = new Cell();
        Supplier<Object> n = () -> c.n, r = () -> c.r;
        add("volatile int", c, n, i -> c.n = i + 1);
        add("volatile reference", c, r, i -> c.r = "r" + i);
        VarHandle hn = L.findVarHandle(Cell.class, "n", int.class), hr = L.findVarHandle(Cell.class, "r", Object.class);
        add("VarHandle.setVolatile", c, n, i -> hn.setVolatile(c, -i - 1));
        add("VarHandle.setRelease", c, n, i -> hn.setRelease(c, i + 1));
        add("VarHandle.getAndAdd", c, n, i -> hn.getAndAdd(c, 3));
        add("VarHandle.setVolatile of a reference", c, r, i -> hr.setVolatile(c, "v" + i));
        add("VarHandle.getAndSet of a reference", c, r, i -> hr.getAndSet(c, "g" + i));
        add("VarHandle.compareAndSet", c, r, i -> hr.compareAndSet(c, c.r, new int[] {i}));
        Field fn = Cell.class.getDeclaredField("n"), fr = Cell.class.getDeclaredField("r");
        add("Field.setInt", c, n, i -> fn.setInt(c, -i - 1));
        add("Field.set", c, r, i -> fr.set(c, "f" + i));
        AtomicIntegerFieldUpdater<Cell> updater = AtomicIntegerFieldUpdater.newUpdater(Cell.class, "n");
        add("AtomicIntegerFieldUpdater", c, n, i -> updater.incrementAndGet(c));
        AtomicInteger ai = new AtomicInteger();
        add("AtomicInteger.set", ai, ai::get, i -> ai.set(i + 1));
        add("AtomicInteger.incrementAndGet", ai, ai::get, i -> ai.incrementAndGet());
        add("AtomicInteger.compareAndSet", ai, ai::get, i -> ai.compareAndSet(ai.get(), -i - 1));
        AtomicLong al = new AtomicLong();
        add("AtomicLong.getAndUpdate", al, al::get, i -> al.getAndUpdate(x -> x + 7));
        AtomicReference<Object> ar = new AtomicReference<>();
        add("AtomicReference.set", ar, ar::get, i -> ar.set("s" + i));
        add("AtomicReference.lazySet", ar, ar::get, i -> ar.lazySet("l" + i));
        add("AtomicReference.getAndSet", ar, ar::get, i -> ar.getAndSet(new long[] {i}));
        add("AtomicReference.updateAndGet", ar, ar::get, i -> ar.updateAndGet(x -> "u" + i));
        OnDemand<Object> od = new OnDemand<>();
        add("OnDemand.set", od, od::get, i -> od.set("o" + i));
        AtomicIntegerArray ia = new AtomicIntegerArray(4);
        add("AtomicIntegerArray.addAndGet", ia, () -> ia.get(2), i -> ia.addAndGet(2, 5));
        AtomicReferenceArray<Object> ra = new AtomicReferenceArray<>(4);
        add("AtomicReferenceArray.set", ra, () -> ra.get(1), i -> ra.set(1, "a" + i));
        add("AtomicReferenceArray.compareAndSet", ra, () -> ra.get(3), i -> ra.compareAndSet(3, ra.get(3), "c" + i));
        return all;
    }
}
