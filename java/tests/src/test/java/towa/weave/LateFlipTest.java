package towa.weave;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.towa.Towa;
import io.towa.agent.Groups;
import java.lang.invoke.MethodHandles;
import java.lang.invoke.VarHandle;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import org.junit.jupiter.api.DynamicTest;
import org.junit.jupiter.api.TestFactory;

/** Everything is compiled while nothing is durable; then a pool is opened, in the midst of running loops, and every write is seen. */
class LateFlipTest {
    static class Hot { int x; Object r; }
    static class Handled { int x; volatile long v; }
    static class Later { int x; Object r; }

    interface Step { void run(int i); }

    private static volatile boolean stop;
    private static final Object[] TWO = {"a", "b"};

    /** A loop that runs until it is told to stop; only a safepoint lets it see a barrier. */
    private static final class Loop extends Thread {
        final Object target;
        private final Step step;
        volatile int reached;
        Throwable failed;

        Loop(Object target, Step step) {
            this.target = target;
            this.step = step;
        }

        @Override
        public void run() {
            try {
                for (int i = 0; !stop; i++) {
                    step.run(i);
                    if ((i & 1023) == 0) reached = i;
                }
            } catch (Throwable e) {
                failed = e;
            }
        }
    }

    private static List<Loop> loops() throws Exception {
        List<Loop> all = new ArrayList<>();
        Hot h = new Hot();
        int[] n = new int[64];
        Object[] r = new Object[8];
        Handled v = new Handled();
        VarHandle x = MethodHandles.lookup().findVarHandle(Handled.class, "x", int.class);
        VarHandle y = MethodHandles.lookup().findVarHandle(Handled.class, "v", long.class);
        all.add(new Loop(new Object[] {h, n, r, v}, i -> {
            h.x = i;
            h.r = TWO[i & 1];
            n[i & 63] = i;
            r[i & 7] = TWO[i >> 3 & 1];
            x.set(v, i);
            long before = (long) y.getAndAdd(v, 1L);
        }));
        HashMap<Integer, Object> map = new HashMap<>();
        all.add(new Loop(map, i -> { map.put(i & 255, TWO[i & 1]); if ((i & 7) == 0) map.remove(i * 31 & 255); }));
        return all;
    }

    private static void finish(List<Loop> loops, int[] at) throws Exception {
        Thread.sleep(150);
        stop = true;
        for (Loop l : loops) l.join();
        for (int k = 0; k < at.length; k++) {
            if (loops.get(k).failed != null) throw new AssertionError(loops.get(k).failed);
            assertTrue(loops.get(k).reached > at[k], "loop " + k + " went on");
            Fixture.same(loops.get(k).target, "loop " + k);
        }
        assertEquals(List.of(), Towa.verify());
    }

    private static int[] start(List<Loop> loops) throws Exception {
        stop = false;
        for (Loop l : loops) l.start();
        for (Loop l : loops) while (l.reached < 200_000 && l.failed == null) Thread.sleep(1);
        int[] at = new int[loops.size()];
        for (int k = 0; k < at.length; k++) at[k] = loops.get(k).reached;
        return at;
    }

    private static void aPoolIsOpened() throws Exception {
        List<Loop> loops = loops();
        int[] at = start(loops);
        assertFalse(Groups.anyFlipped());
        Fixture.holder = new Object[loops.size()];
        for (int k = 0; k < at.length; k++) Fixture.holder[k] = loops.get(k).target;
        Fixture.open();
        assertTrue(Groups.anyFlipped());
        finish(loops, at);
    }

    /** The pool is open; one class after the other, of those not durable yet. */
    private static void objectsBecomeDurable() throws Exception {
        Later one = new Later();
        short[] two = new short[64];
        char[] three = new char[64];
        HashMap<Integer, Object> map = new HashMap<>();
        List<Loop> loops = List.of(new Loop(new Object[] {one, two, three}, i -> {
            one.x = i;
            one.r = TWO[i & 1];
            two[i & 63] = (short) i;
            three[i & 63] = (char) i;
        }), new Loop(map, i -> map.put(i & 255, TWO[i & 1])));
        int[] at = start(loops);
        for (int k = 0; k < at.length; k++) Fixture.holder[k] = loops.get(k).target;
        for (int k = 0; k < at.length; k++) at[k] = loops.get(k).reached;
        finish(loops, at);
    }

    @TestFactory
    List<DynamicTest> everyWriteIsSeenAfterwards() throws Throwable {
        List<Cases.Case> cases = Cases.all();
        for (Cases.Case c : cases) {
            Cases.Action a = c.action();
            for (int i = 0; i < c.calls(); i++) a.run(i);
        }
        assertFalse(Groups.anyFlipped(), "no barrier is on");
        assertEquals(0, Towa.metrics().stores());
        assertEquals(0, Towa.metrics().promoted());
        List<DynamicTest> all = new ArrayList<>();
        all.add(DynamicTest.dynamicTest("a pool is opened while loops run", LateFlipTest::aPoolIsOpened));
        all.add(DynamicTest.dynamicTest("objects become durable while loops run", LateFlipTest::objectsBecomeDurable));
        for (Cases.Case c : cases) all.add(DynamicTest.dynamicTest(c.name(), () -> EarlyFlipTest.check(c)));
        return all;
    }
}
