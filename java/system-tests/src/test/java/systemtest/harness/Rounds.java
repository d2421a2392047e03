package systemtest.harness;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.Random;
import java.util.concurrent.Callable;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import java.util.stream.Stream;

/** What randomised tests share: how many rounds, from which seed, in how many lanes, and where their files lie. */
public final class Rounds {
    /** 0: each test's own number. */
    private static final int WANTED = Integer.getInteger("towa.rounds", 0);
    private static final int LANES = Integer.getInteger("towa.lanes", 2);

    private Rounds() {}

    /** {@code usual}, or a share of what -Dtowa.rounds wants that grows with {@code usual}: 200 are what all tests do together. */
    public static int of(int usual) {
        return WANTED == 0 ? usual : Math.max(1, (int) ((long) WANTED * usual / 200));
    }

    /** Printed, and taken from TOWA_SEED to repeat a run. */
    public static long seed(String test) {
        String given = System.getenv("TOWA_SEED");
        long seed = given == null || given.isBlank() ? System.currentTimeMillis() / 1000 : Long.parseLong(given.trim());
        System.out.println(test + ": seed " + seed + " (again: TOWA_SEED=" + seed + ")");
        return seed;
    }

    /** One of a lane's rounds. */
    public interface Lane {
        /** Runs {@code rounds} rounds with files in {@code folder}; says in words what happened. */
        String run(Path folder, int rounds, Random random) throws Exception;
    }

    /** Shares the rounds among lanes that run beside each other. The folder of a lane that failed is kept. */
    public static void inLanes(String test, int rounds, Lane lane) throws Exception {
        long seed = seed(test);
        long begin = System.nanoTime();
        ExecutorService pool = Executors.newFixedThreadPool(LANES);
        try {
            List<Future<String>> running = new ArrayList<>();
            for (int i = 0; i < LANES; i++) {
                int share = rounds / LANES + (i < rounds % LANES ? 1 : 0);
                long own = seed * 1_000_003 + i;
                int number = i;
                Callable<String> job = () -> {
                    Path folder = folder(test + "-" + number);
                    try {
                        String said = lane.run(folder, share, new Random(own));
                        remove(folder);
                        return said;
                    } catch (Throwable e) {
                        throw new AssertionError(test + ", seed " + seed + ", lane " + number + ": files kept in " + folder, e);
                    }
                };
                running.add(pool.submit(job));
            }
            for (Future<String> f : running) {
                try {
                    System.out.println(test + ": " + f.get());
                } catch (ExecutionException e) {
                    if (e.getCause() instanceof AssertionError a) {
                        throw a;
                    }
                    throw e;
                }
            }
        } finally {
            pool.shutdownNow();
            pool.awaitTermination(10, TimeUnit.SECONDS);
        }
        System.out.printf("%s: %d rounds, %.1f s%n", test, rounds, (System.nanoTime() - begin) / 1e9);
    }

    /** A fresh folder; -Dtowa.folder says below which (a DAX file system, say). */
    public static Path folder(String name) throws IOException {
        String below = System.getProperty("towa.folder");
        return below == null ? Files.createTempDirectory("towa-" + name + "-") : Files.createTempDirectory(Path.of(below), "towa-" + name + "-");
    }

    public static void remove(Path folder) throws IOException {
        try (Stream<Path> all = Files.walk(folder)) {
            for (Path p : all.sorted(java.util.Comparator.reverseOrder()).toList()) {
                Files.deleteIfExists(p);
            }
        }
    }
}
