package systemtest.kill;

import java.util.List;
import java.util.Random;
import systemtest.harness.Machine;

/**
 * When a program is killed. Two clocks: from its start, which meets the machine's start, the opening of the pool and recovery; and from the line that
 * says that recovery is over, which meets the work.
 */
record KillMoment(boolean fromStart, long us) {
    /**
     * @param begunMs how long it took last time until the program said that recovery was over
     * @param workMs how long after that line it may live
     */
    static KillMoment draw(Random random, double begunMs, int workMs) {
        if (random.nextInt(3) == 0) {
            // Around recovery, which is the last part of the time before the line.
            return new KillMoment(true, (long) (1000 * begunMs * (0.5 + 0.6 * random.nextDouble())));
        }
        // Short times as likely as long ones: the first stores after recovery matter as much as the last.
        double log = random.nextDouble() * Math.log(workMs * 1000.0);
        return new KillMoment(false, (long) Math.exp(log));
    }

    /** Kills {@code m} at that moment; false if it ended by itself before. {@code begun}: how the line opens. */
    boolean kill(Machine m, String begun) throws InterruptedException {
        if (!fromStart && m.await(l -> l.startsWith(begun) || l.startsWith("WRONG"), 120_000) == null) {
            if (m.endsWithin(1_000_000)) {
                return false;
            }
            m.expect(begun);
        }
        if (m.endsWithin(us)) {
            return false;
        }
        m.kill();
        return true;
    }

    /** Flags that rounds draw from: the pool must not know which machine it was written by. */
    static final List<List<String>> FLAGS = List.of(List.of("-XX:+UseSerialGC"), List.of("-XX:+UseParallelGC"), List.of("-XX:+UseG1GC"),
        List.of("-XX:+UseSerialGC", "-XX:+UseCompactObjectHeaders"), List.of("-XX:+UseSerialGC", "-XX:-UseCompressedOops"));

    /** Mostly the machine that starts fastest: C2 has little to win in a program that is killed in its first second. */
    static List<String> flags(Random random) {
        return random.nextInt(4) != 0 ? List.of("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1") : FLAGS.get(random.nextInt(FLAGS.size()));
    }
}
