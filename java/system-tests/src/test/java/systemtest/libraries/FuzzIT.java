package systemtest.libraries;

import static org.junit.jupiter.api.Assertions.assertEquals;

import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.stream.Stream;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;
import systemtest.harness.Machine;
import systemtest.harness.RustVerify;

/** Random operations on random graphs of libraries' structures, restart after restart. TOWA_FUZZ_ROUNDS asks for more rounds, TOWA_SEED for others. */
class FuzzIT {
    private static final int ROUNDS = Integer.parseInt(System.getenv().getOrDefault("TOWA_FUZZ_ROUNDS", "10000"));
    private static final int OPERATIONS = 10;
    /** A JVM has so many rounds but ten, in the middle of a graph's life: the next one goes on with it. */
    private static final int IN_ONE_JVM = 2010;

    @TempDir
    Path folder;

    @Test
    void eachRestartGivesTheGraphOfItsTwin() throws Exception {
        run(ROUNDS);
    }

    /** At every other restart the program's own classes are other versions. */
    @Test
    void alsoWithChangedClasses() throws Exception {
        run(ROUNDS / 10, "versions");
    }

    private void run(int rounds, Object... more) throws Exception {
        Path memory = Path.of("/dev/shm");
        Path pool = Files.createTempDirectory(Files.isWritable(memory) ? memory : folder, "towa-fuzz").resolve("pool.towa");
        String seed = System.getenv().getOrDefault("TOWA_SEED", "1");
        List<String> said = new ArrayList<>();
        List<String> expected = new ArrayList<>();
        for (int from = 0; from < rounds; from += IN_ONE_JVM) {
            int to = Math.min(from + IN_ONE_JVM, rounds);
            expected.add("rounds " + from + " to " + to);
            List<Object> arguments = new ArrayList<>(List.of(pool, seed, String.valueOf(from), String.valueOf(to), String.valueOf(OPERATIONS)));
            arguments.addAll(List.of(more));
            try (Machine m = Machine.start(List.of("-Xmx512m"), "systemtest.libraries.FuzzProgram", arguments.toArray())) {
                m.exit();
                said.addAll(m.lines().stream().filter(l -> l.startsWith("rounds") || l.startsWith("BROKEN") || l.startsWith("Exception")).toList());
            }
        }
        assertEquals(expected, said);
        RustVerify.check(pool);
        // The pool, and the socket of a program that has ended as a kill would end it.
        try (Stream<Path> files = Files.list(pool.getParent())) {
            for (Path f : files.toList()) {
                Files.delete(f);
            }
        }
        Files.delete(pool.getParent());
    }
}
