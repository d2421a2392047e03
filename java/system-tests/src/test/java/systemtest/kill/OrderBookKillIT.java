package systemtest.kill;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import java.util.Random;
import org.junit.jupiter.api.Test;
import systemtest.harness.Machine;
import systemtest.harness.Rounds;
import systemtest.harness.RustVerify;

/** Sections of several stores under kills: an order book whose collections must agree with each other after each recovery. It checks that itself. */
class OrderBookKillIT {
    @Test
    void sectionsAreWholeOrNotThere() throws Exception {
        Rounds.inLanes("kill-orderbook", Rounds.of(30), OrderBookKillIT::lane);
    }

    private static String lane(Path folder, int rounds, Random random) throws Exception {
        Path file = folder.resolve("pool");
        long placed = 0;
        int early = 0;
        double begunMs = 900;
        for (int round = 0; round < rounds; round++) {
            try (Machine m = Machine.start(KillMoment.flags(random), "orderbook.OrderBook", file, 1_000_000, 1 + random.nextInt(3))) {
                KillMoment when = KillMoment.draw(random, begunMs, 500);
                assertTrue(when.kill(m, "begin "), m::toString);
                placed = check(m, placed);
                if (m.line("begin ") == null) {
                    early++;
                } else {
                    begunMs = 0.7 * begunMs + 0.3 * m.msUntil("begin ");
                }
            }
            if (Files.exists(file) && round % 4 == 0) {
                RustVerify.check(file);
            }
        }
        try (Machine m = Machine.start(List.of("-XX:+UseSerialGC"), "orderbook.OrderBook", file, 1000, 2)) {
            m.succeed();
            check(m, placed);
            assertTrue(m.line("end ") != null, m::toString);
        }
        return rounds + " rounds, killed before recovery was over " + early + ", " + placed + " placed by then";
    }

    /** What was placed never gets less. */
    private static long check(Machine m, long least) {
        assertTrue(m.lines().stream().noneMatch(l -> l.contains("WRONG") || l.contains("Exception")), m::toString);
        String begun = m.line("begin ");
        if (begun == null) {
            return least;
        }
        String[] words = begun.split(" ");
        assertEquals("placed,", words[5], begun);
        long placed = Long.parseLong(words[4]);
        assertTrue(placed >= least, "began with " + placed + " placed after " + least + ": " + m);
        return placed;
    }
}
