package systemtest.crowd;

import static org.junit.jupiter.api.Assertions.assertNotNull;

import java.nio.file.Path;
import java.util.List;
import org.junit.jupiter.api.Test;
import systemtest.harness.Machine;
import systemtest.harness.Rounds;
import systemtest.harness.RustVerify;

/** Virtual threads that wait for each other in the midst of Towa's own work, more of them than there are carriers: see {@link CrowdProgram}. */
class CrowdIT {
    private static final long SECONDS = Long.getLong("towa.crowd", 8);

    @Test
    void nobodyWaitsForOneThatHasNoCarrier() throws Exception {
        crowd("-XX:+UseG1GC", "quiet");
    }

    @Test
    void norWhileEventsAreWatched() throws Exception {
        crowd("-XX:+UseShenandoahGC", "events");
    }

    private static void crowd(String collector, String events) throws Exception {
        long seed = Rounds.seed("crowd");
        Path folder = Rounds.folder("crowd");
        Path file = folder.resolve("pool");
        List<String> flags = List.of(collector, "-Djdk.virtualThreadScheduler.parallelism=2", "--enable-native-access=ALL-UNNAMED");
        try (Machine m = Machine.start(flags, "systemtest.crowd.CrowdProgram", file, SECONDS, seed, events)) {
            m.succeed();
            String done = m.line("done: ");
            assertNotNull(done, m::toString);
            System.out.println("crowd, " + collector + ", " + events + ": " + done);
        } catch (AssertionError e) {
            throw new AssertionError("crowd, seed " + seed + ": files kept in " + folder, e);
        }
        RustVerify.check(file);
        Rounds.remove(folder);
    }
}
