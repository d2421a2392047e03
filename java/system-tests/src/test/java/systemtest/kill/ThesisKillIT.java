package systemtest.kill;

import static org.junit.jupiter.api.Assertions.assertTrue;

import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.Random;
import org.junit.jupiter.api.Test;
import systemtest.harness.Machine;
import systemtest.harness.Rounds;
import systemtest.harness.RustVerify;

/**
 * The thesis' evaluation (chapter 6): its two programs are killed again and again, in recovery too, and go on each time. What must hold: a program
 * never begins with less than it began with before; in the end all primes, or strings, are there and right.
 */
class ThesisKillIT {
    @Test
    void primes() throws Exception {
        Rounds.inLanes("kill-primes", Rounds.of(60), (folder, rounds, random) -> campaigns(folder, rounds, random, "thesis.Primes", 400, "-Dcount=60000"));
    }

    @Test
    void strings() throws Exception {
        Rounds.inLanes("kill-strings", Rounds.of(60), (folder, rounds, random) -> campaigns(folder, rounds, random, "thesis.Strings", 150,
            "-Dcount=40000", "-Drepeat=46"));
    }

    /** Enough objects that most kills that go by the start's clock meet recovery. */
    @Test
    void longRecovery() throws Exception {
        Rounds.inLanes("kill-recovery", Rounds.of(30), (folder, rounds, random) -> {
            String[] program = {"-Dcount=250000", "-Drepeat=8"};
            Path file = folder.resolve("pool");
            // All are there before the first kill, so that each start has the whole of them to bring back.
            run(file, List.of("-XX:+UseSerialGC"), "thesis.Strings", program);
            return recoveries(file, rounds, random, program);
        });
    }

    private static Machine start(Path file, List<String> flags, String main, String... program) throws Exception {
        List<String> all = new ArrayList<>(flags);
        all.addAll(List.of(program));
        return Machine.start(all, main, file);
    }

    /** To its end. */
    private static void run(Path file, List<String> flags, String main, String... program) throws Exception {
        try (Machine m = start(file, flags, main, program)) {
            m.succeed();
            verified(m, program);
        }
        RustVerify.check(file);
    }

    private static void verified(Machine m, String... program) {
        assertTrue(m.lines().contains("verified " + program[0].substring("-Dcount=".length())), m::toString);
    }

    private static String campaigns(Path folder, int rounds, Random random, String main, int workMs, String... program) throws Exception {
        Path file = folder.resolve("pool");
        int early = 0;
        int ended = 0;
        long least = 0;
        double begunMs = 700;
        for (int round = 0; round < rounds; round++) {
            KillMoment when = KillMoment.draw(random, begunMs, workMs);
            try (Machine m = start(file, KillMoment.flags(random), main, program)) {
                boolean killed = when.kill(m, "begin ");
                String begun = m.line("begin ");
                if (begun == null) {
                    early++;
                } else {
                    long now = Long.parseLong(begun.substring("begin ".length()));
                    assertTrue(now >= least, "began with " + now + " after it had had " + least + ": " + m);
                    least = now;
                    begunMs = 0.7 * begunMs + 0.3 * m.msUntil("begin ");
                }
                if (!killed) {
                    // It was quicker than its kill: this file is finished, the next campaign begins.
                    m.succeed();
                    verified(m, program);
                    ended++;
                    RustVerify.check(file);
                    Files.delete(file);
                    least = 0;
                } else {
                    assertTrue(m.lines().stream().noneMatch(l -> l.contains("Exception") || l.contains("WRONG")), m::toString);
                    if (Files.exists(file) && round % 4 == 0) {
                        RustVerify.check(file);
                    }
                }
            }
        }
        run(file, KillMoment.flags(random), main, program);
        return rounds + " rounds, killed before recovery was over " + early + ", finished " + ended + " and once more at the end";
    }

    private static String recoveries(Path file, int rounds, Random random, String... program) throws Exception {
        int early = 0;
        double begunMs = 1200;
        for (int round = 0; round < rounds; round++) {
            try (Machine m = start(file, KillMoment.flags(random), "thesis.Strings", program)) {
                KillMoment when = new KillMoment(true, (long) (1000 * begunMs * (0.35 + 0.65 * random.nextDouble())));
                when.kill(m, "begin ");
                boolean begun = m.line("begin ") != null;
                early += begun ? 0 : 1;
                // So that about one in five lives to say it.
                begunMs = Math.clamp(begun ? begunMs * 0.93 : begunMs * 1.03, 500, 10_000);
                assertTrue(m.lines().stream().noneMatch(l -> l.contains("Exception") || l.contains("WRONG")), m::toString);
            }
        }
        RustVerify.check(file);
        run(file, List.of("-XX:+UseParallelGC"), "thesis.Strings", program);
        return rounds + " rounds, killed before recovery was over " + early;
    }
}
