package towa.weave;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.towa.agent.Agent;
import io.towa.agent.Groups;
import io.towa.graph.Replicas;
import io.towa.graph.Stores;
import java.util.ArrayList;
import java.util.List;
import org.junit.jupiter.api.DynamicTest;
import org.junit.jupiter.api.TestFactory;

/** Everything is compiled while nothing is durable, and calls nothing; then barriers are turned on, and every write is seen. */
class LateFlipTest {
    static class Hot { int x; Object r; }

    private static volatile boolean stop, armed, running;

    @TestFactory
    List<DynamicTest> everyWriteIsSeenAfterwards() throws Throwable {
        Agent.weaveJdk();
        List<Cases.Case> cases = Cases.all();
        Object[] targets = new Object[cases.size()];
        for (int i = 0; i < targets.length; i++) targets[i] = cases.get(i).target();
        Replicas.set(targets);
        Stores.reset();
        for (Cases.Case c : cases) EarlyFlipTest.missed(c, 0, EarlyFlipTest.HOT);
        assertEquals(0, Stores.calls, "nothing is turned on, so nothing may be called");
        Replicas.set();
        List<DynamicTest> all = new ArrayList<>();
        all.add(DynamicTest.dynamicTest("in a running loop", LateFlipTest::runningLoop));
        for (Cases.Case c : cases) all.add(DynamicTest.dynamicTest(c.name(), () -> EarlyFlipTest.check(c)));
        return all;
    }

    /** The loop calls nothing and never leaves; only a safepoint lets it see the barrier. */
    private static void runningLoop() throws Exception {
        Hot h = new Hot();
        long[] expected = new long[1];
        Thread t = new Thread(() -> {
            for (int i = 0; !stop; i++) {
                boolean counted = armed;
                h.x = i;
                if (counted) expected[0]++;
                running = true;
            }
        });
        t.start();
        while (!running) Thread.onSpinWait();
        Thread.sleep(300);
        Groups.ensureFlipped(Hot.class);
        Replicas.set(h);
        Stores.reset();
        armed = true;
        Thread.sleep(100);
        stop = true;
        t.join();
        assertTrue(expected[0] > 0);
        assertTrue(Stores.writes >= expected[0], Stores.writes + " seen of " + expected[0]);
        Replicas.set();
    }
}
