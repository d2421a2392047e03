package towa.weave;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.towa.NotDurableException;
import io.towa.Towa;
import io.towa.agent.Agent;
import io.towa.barrier.Header;
import java.util.ArrayList;
import java.util.List;
import org.junit.jupiter.api.AfterAll;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.DynamicTest;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.TestFactory;

/** The target is durable first: every write reaches its replica, interpreted and compiled. */
class EarlyFlipTest {
    @BeforeAll
    static void open() throws Exception {
        Fixture.open();
        assertEquals(0, Agent.failures().length, () -> List.of(Agent.failures()).toString());
    }

    @AfterAll
    static void all() {
        assertEquals(List.of(), Towa.verify());
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
        Fixture.hold(c.target());
        // A case that writes what is there already would prove nothing.
        int changed = 0;
        for (int i = 0; i < 64; i++) {
            List<Object> before = Snapshot.of(c.target());
            Fixture.run(c, i, i + 1);
            if (!Snapshot.same(before, Snapshot.of(c.target()))) changed++;
        }
        assertTrue(changed >= 16, c.name() + " changed something in " + changed + " of 64 calls");
        Fixture.run(c, 64, c.calls());
        Fixture.holder[0] = null;
    }

    @TestFactory
    List<DynamicTest> whatCannotBeDurableIsRefused() throws Exception {
        Cases.all();
        List<DynamicTest> all = new ArrayList<>();
        for (Cases.Refused r : Cases.REFUSED) {
            all.add(DynamicTest.dynamicTest(r.name() + ": " + r.why(), () -> {
                Fixture.hold("something else");
                assertThrows(NotDurableException.class, () -> Fixture.holder[0] = r.target());
                assertEquals("something else", Fixture.holder[0]);
                assertFalse(Towa.isDurable(r.target()));
            }));
        }
        return all;
    }
}
