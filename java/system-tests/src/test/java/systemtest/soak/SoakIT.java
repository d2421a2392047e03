package systemtest.soak;

import static org.junit.jupiter.api.Assertions.fail;

import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import org.junit.jupiter.api.Test;
import systemtest.harness.Machine;
import systemtest.harness.Rounds;
import systemtest.harness.RustVerify;

/**
 * The differential soak: the graph in DRAM is equal to its replicas whenever the program stands still, and a new machine recovers exactly what the last one
 * had. {@code -Dtowa.soak=SECONDS}.
 */
class SoakIT {
    private static final long SECONDS = Long.getLong("towa.soak", 45);
    private static final List<String> FLAGS = List.of("-Xmx512m", "--add-exports", "java.base/jdk.internal.misc=ALL-UNNAMED");

    @Test
    void dramAndReplicasAndRecoveredGraphAreEqual() throws Exception {
        long seed = Rounds.seed("soak");
        Path folder = Rounds.folder("soak");
        Path file = folder.resolve("pool");
        // The second machine works on what the first one left; the third only looks.
        long[] seconds = {(SECONDS + 1) / 2, SECONDS / 2, 0};
        String[] collectors = {"-XX:+UseG1GC", "-XX:+UseZGC", "-XX:+UseSerialGC"};
        for (int i = 0; i < seconds.length; i++) {
            List<String> flags = new ArrayList<>(FLAGS);
            flags.add(collectors[i]);
            try (Machine m = Machine.start(flags, "systemtest.soak.SoakProgram", file, seconds[i], seed + i, folder.resolve(i + ".before"),
                folder.resolve(i + ".after"))) {
                long patience = System.nanoTime() + (seconds[i] + 120) * 1_000_000_000L;
                while (!m.endsWithin(1_000_000) && System.nanoTime() < patience) {
                    // at work
                }
                m.succeed();
                m.lines().forEach(l -> System.out.println("soak: " + l));
            } catch (AssertionError e) {
                throw new AssertionError("soak, seed " + seed + ": files kept in " + folder, e);
            }
            RustVerify.check(file);
            if (i > 0) {
                same(folder.resolve(i - 1 + ".after"), folder.resolve(i + ".before"));
            }
        }
        Rounds.remove(folder);
    }

    private static void same(Path then, Path now) throws Exception {
        if (Files.mismatch(then, now) < 0) {
            return;
        }
        List<String> a = Files.readAllLines(then);
        List<String> b = Files.readAllLines(now);
        StringBuilder all = new StringBuilder(then + " has " + a.size() + " lines, " + now + " " + b.size() + "; they differ:\n");
        for (int i = 0, shown = 0; i < Math.min(a.size(), b.size()) && shown < 10; i++) {
            if (!a.get(i).equals(b.get(i))) {
                all.append("- ").append(a.get(i)).append("\n+ ").append(b.get(i)).append('\n');
                shown++;
            }
        }
        fail(all.toString());
    }
}
