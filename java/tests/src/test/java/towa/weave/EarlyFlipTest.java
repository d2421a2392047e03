package towa.weave;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNull;

import io.towa.agent.Agent;
import io.towa.agent.Groups;
import io.towa.barrier.Header;
import io.towa.graph.Replicas;
import io.towa.graph.Stores;
import java.util.ArrayList;
import java.util.List;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.DynamicTest;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.TestFactory;

/** The object is durable before anything is compiled: every write is seen, the first one and each of 60,000 more. */
class EarlyFlipTest {
    static final int HOT = 60_000;

    @BeforeAll
    static void weave() {
        Agent.weaveJdk();
        assertEquals(0, Agent.failures().length, () -> List.of(Agent.failures()).toString());
    }

    @Test
    void headerIsWhatItIsTakenFor() {
        assertNull(Header.selfTest());
    }

    @TestFactory
    List<DynamicTest> everyWriteIsSeen() throws Exception {
        List<DynamicTest> all = new ArrayList<>();
        for (Cases.Case c : Cases.all()) all.add(DynamicTest.dynamicTest(c.name(), () -> check(c)));
        return all;
    }

    static void check(Cases.Case c) throws Throwable {
        Groups.ensureFlipped(c.target().getClass());
        Replicas.set(c.target());
        Stores.reset();
        try {
            int missed = missed(c, 0, 1);
            assertEquals(0, missed, c.name() + ": the first write escaped");
            assertEquals(0, missed(c, 1, HOT), c.name() + ": of " + HOT + " writes escaped");
            assertEquals(Stores.locks, Stores.unlocks);
        } finally {
            Replicas.set();
        }
    }

    static int missed(Cases.Case c, int from, int to) throws Throwable {
        int missed = 0;
        Cases.Action a = c.action();
        for (int i = from; i < to; i++) {
            long before = Stores.writes;
            a.run(i);
            if (Stores.writes == before) missed++;
        }
        return missed;
    }
}
