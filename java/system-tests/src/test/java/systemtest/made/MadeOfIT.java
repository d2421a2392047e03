package systemtest.made;

import static org.junit.jupiter.api.Assertions.assertEquals;

import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;
import systemtest.harness.Machine;

/** What objects are made of: each kind is kept, or the same in the next run, or refused by name. */
class MadeOfIT {
    @TempDir
    Path folder;

    private static List<String> run(Path pool, String... flags) throws Exception {
        try (Machine m = Machine.start(List.of(flags), "systemtest.made.MadeOf", pool)) {
            m.succeed();
            List<String> lines = new ArrayList<>(m.lines());
            lines.removeIf(l -> l.startsWith("WARNING"));
            return lines;
        }
    }

    @Test
    void eachKindIsKeptOrRefusedByName() throws Exception {
        Path pool = folder.resolve("pool.towa");
        for (int i = 0; i < 3; i++) {
            assertEquals(List.of("done"), run(pool), "run " + i);
        }
        assertEquals(List.of("done"), run(pool, "-XX:+UnlockExperimentalVMOptions", "-XX:hashCode=2"), "with other identity hashes");
    }
}
