package systemtest.kill;

import static org.junit.jupiter.api.Assertions.assertTrue;

import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Random;
import org.junit.jupiter.api.Test;
import systemtest.harness.Machine;
import systemtest.harness.Rounds;
import systemtest.harness.RustVerify;

/** What lies behind an OnDemand is not lost by any number of crashes, whether it was loaded in that run, was being loaded, or not. */
class ShardsKillIT {
    @Test
    void whatIsLoadedOnDemandIsThere() throws Exception {
        Rounds.inLanes("kill-shards", Rounds.of(24), ShardsKillIT::lane);
    }

    private static String lane(Path folder, int rounds, Random random) throws Exception {
        Path file = folder.resolve("pool");
        int lazy = 0;
        double begunMs = 900;
        // Once long enough to have something to load.
        try (Machine m = Machine.start(KillMoment.FLAGS.get(0), "systemtest.kill.Shards", file)) {
            m.expect("begin, not loaded 0");
            m.endsWithin(1_500_000);
            m.kill();
        }
        for (int round = 0; round < rounds; round++) {
            try (Machine m = Machine.start(KillMoment.flags(random), "systemtest.kill.Shards", file)) {
                assertTrue(KillMoment.draw(random, begunMs, 1500).kill(m, "begin, "), m::toString);
                assertTrue(m.lines().stream().noneMatch(l -> l.contains("WRONG") || l.contains("Exception")), m::toString);
                if (m.line("begin, ") != null) {
                    begunMs = 0.7 * begunMs + 0.3 * m.msUntil("begin, ");
                    assertTrue(m.line("begin, not loaded 24") != null, m::toString);
                    lazy++;
                }
            }
            if (Files.exists(file) && round % 4 == 0) {
                RustVerify.check(file);
            }
        }
        return rounds + " rounds, " + lazy + " went on with nothing loaded";
    }
}
