package systemtest.kill;

import static org.junit.jupiter.api.Assertions.assertTrue;

import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Random;
import org.junit.jupiter.api.Test;
import systemtest.harness.Machine;
import systemtest.harness.Rounds;
import systemtest.harness.RustVerify;

/** Tables that grow, bins that become trees and trees that turn lose no entry that was there: without a section of the program's own. */
class GrowingMapsKillIT {
    @Test
    void whatWasStoredStays() throws Exception {
        Rounds.inLanes("kill-maps", Rounds.of(24), GrowingMapsKillIT::lane);
    }

    private static String lane(Path folder, int rounds, Random random) throws Exception {
        Path file = folder.resolve("pool");
        int midway = 0;
        double begunMs = 900;
        // Once long enough to have maps at all.
        try (Machine m = Machine.start(KillMoment.FLAGS.get(0), "systemtest.kill.GrowingMaps", file)) {
            m.expect("begin 0");
            m.endsWithin(1_500_000);
            m.kill();
        }
        for (int round = 0; round < rounds; round++) {
            try (Machine m = Machine.start(KillMoment.flags(random), "systemtest.kill.GrowingMaps", file)) {
                assertTrue(KillMoment.draw(random, begunMs, 1500).kill(m, "begin "), m::toString);
                assertTrue(m.lines().stream().noneMatch(l -> l.contains("WRONG") || l.contains("Exception")), m::toString);
                if (m.line("begin ") != null) {
                    begunMs = 0.7 * begunMs + 0.3 * m.msUntil("begin ");
                    midway += m.line("begin 0") == null ? 1 : 0;
                }
            }
            if (Files.exists(file) && round % 4 == 0) {
                RustVerify.check(file);
            }
        }
        return rounds + " rounds, " + midway + " began in the midst of maps";
    }
}
