package systemtest.matrix;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import org.junit.jupiter.api.Test;
import systemtest.harness.Machine;
import systemtest.harness.Rounds;
import systemtest.harness.RustVerify;

/** The same program on every collector and layout of objects; each machine's pool is read by the next kind of machine. */
class MatrixIT {
    /** A machine: its flags, and how many steps it can do in about a second. */
    record Kind(String flags, int steps, boolean virtual) {
        List<String> all() {
            return List.of(flags.split(" "));
        }
    }

    private static final List<Kind> KINDS = List.of(
        new Kind("-XX:+UseSerialGC", 4_000, false),
        new Kind("-XX:+UseParallelGC", 4_000, false),
        new Kind("-XX:+UseG1GC", 4_000, false),
        new Kind("-XX:+UseZGC", 4_000, false),
        new Kind("-XX:+UseShenandoahGC", 4_000, false),
        new Kind("-XX:+UseG1GC -XX:+UseCompactObjectHeaders", 4_000, false),
        new Kind("-XX:+UseZGC -XX:+UseCompactObjectHeaders", 4_000, false),
        new Kind("-XX:+UseG1GC -XX:-UseCompressedOops", 4_000, false),
        new Kind("-XX:+UseSerialGC -Xint", 500, false),
        new Kind("-XX:+UseSerialGC -XX:TieredStopAtLevel=1", 4_000, false),
        new Kind("-XX:+UseParallelGC -XX:-TieredCompilation", 3_000, false),
        new Kind("-XX:+UseG1GC", 4_000, true));

    @Test
    void everyMachineWritesAndTheNextOneReads() throws Exception {
        Path folder = Rounds.folder("matrix");
        ExecutorService lanes = Executors.newFixedThreadPool(2);
        try {
            List<Future<String>> all = new ArrayList<>();
            for (int i = 0; i < KINDS.size(); i++) {
                Kind writer = KINDS.get(i);
                Kind reader = KINDS.get((i + 1) % KINDS.size());
                Path file = folder.resolve("pool-" + i);
                all.add(lanes.submit(() -> pair(writer, reader, file)));
            }
            for (Future<String> f : all) {
                System.out.println("matrix: " + f.get());
            }
        } finally {
            lanes.shutdownNow();
        }
        Rounds.remove(folder);
    }

    private static String pair(Kind writer, Kind reader, Path file) throws Exception {
        long begin = System.nanoTime();
        String written;
        try (Machine m = Machine.start(writer.all(), "systemtest.matrix.MatrixProgram", "write", file, writer.steps(), writer.virtual() ? "virtual" : "platform")) {
            m.succeed();
            written = m.line("sum ");
            assertTrue(m.lines().contains("done"), m::toString);
        }
        RustVerify.check(file);
        try (Machine m = Machine.start(reader.all(), "systemtest.matrix.MatrixProgram", "read", file)) {
            m.succeed();
            assertEquals(written, m.line("sum "), m::toString);
            assertTrue(m.line("verify ").endsWith(", loads 20"), m::toString);
        }
        return String.format("%s%s, read by %s: %.1f s", writer.flags(), writer.virtual() ? " with virtual threads" : "", reader.flags(),
            (System.nanoTime() - begin) / 1e9);
    }
}
