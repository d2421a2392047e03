package systemtest.soak;

import io.towa.DurableRoot;
import io.towa.Metrics;
import io.towa.Towa;
import java.io.PrintWriter;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.TreeMap;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.atomic.LongAdder;
import java.util.concurrent.locks.ReentrantReadWriteLock;

/**
 * The soak: several threads work on one durable object of every supported type, others promote overlapping graphs, drop objects and run both collectors.
 * Every now and then all stop, and each durable object must be equal to its replica.
 *
 * <p>{@code SoakProgram FILE SECONDS SEED BEFORE AFTER}: opens, writes a dump of all to BEFORE, works, writes one to AFTER, closes. 0 seconds: dumps
 * only. What one machine leaves in AFTER the next one must find in BEFORE.
 */
public final class SoakProgram {
    @DurableRoot
    private static ConcurrentHashMap<String, Object> world;
    @DurableRoot
    private static Storm.Slots slots;
    @DurableRoot
    private static volatile Object single;

    private static final int WORKERS = 3;
    private static final int STORMERS = 3;
    private static final Map<String, Subject<?>> SUBJECTS = new TreeMap<>();
    /** All who store hold it for reading; who compares holds it for writing. */
    private static final ReentrantReadWriteLock RUNNING = new ReentrantReadWriteLock(true);
    private static final ConcurrentLinkedQueue<Throwable> FAILURES = new ConcurrentLinkedQueue<>();
    private static final Map<String, LongAdder> STEPS = new ConcurrentHashMap<>();
    private static final Map<String, Object> TURNS = new HashMap<>();
    private static volatile boolean over;

    public static void main(String[] args) throws Exception {
        Path file = Path.of(args[0]);
        long seconds = Long.parseLong(args[1]);
        long seed = Long.parseLong(args[2]);
        subjects();
        Towa.open(file);
        if (world == null) {
            world = new ConcurrentHashMap<>();
            slots = new Storm.Slots();
        }
        for (Subject<?> s : SUBJECTS.values()) {
            world.computeIfAbsent(s.name(), n -> s.make().get());
            TURNS.put(s.name(), new Object());
        }
        verify("after opening");
        dump(Path.of(args[3]));
        if (seconds > 0) {
            work(seconds, seed);
        }
        dump(Path.of(args[4]));
        verify("at the end");
        Metrics m = Towa.metrics();
        System.out.println("metrics " + m);
        Towa.close();
        System.out.println("done");
    }

    private static void subjects() {
        List<Subject<?>> all = new ArrayList<>();
        Maps.addTo(all);
        Lists.addTo(all);
        Cells.addTo(all);
        Blocks.addTo(all);
        String only = System.getProperty("only");
        for (Subject<?> s : all) {
            if (only == null || s.name().matches(only)) {
                if (SUBJECTS.put(s.name(), s) != null) {
                    throw new AssertionError("twice: " + s.name());
                }
            }
        }
    }

    private static void work(long seconds, long seed) throws Exception {
        Storm storm = new Storm(STORMERS, seed);
        Random seeds = new Random(seed);
        List<Thread> threads = new ArrayList<>();
        boolean virtual = Boolean.getBoolean("virtual");
        for (int i = 0; i < WORKERS; i++) {
            threads.add(thread(virtual, "worker-" + i, new Random(seeds.nextLong()), SoakProgram::step));
        }
        if (System.getProperty("only") == null || Boolean.getBoolean("storm")) {
            for (int i = 0; i < STORMERS; i++) {
                int me = i;
                threads.add(thread(false, "stormer-" + i, new Random(seeds.nextLong()), r -> {
                    // The barrier is outside the lock: who waits there must not hold up a comparison.
                    RUNNING.readLock().unlock();
                    boolean ran;
                    try {
                        Thread.sleep(r.nextInt(3));
                    } finally {
                        RUNNING.readLock().lock();
                    }
                    ran = storm.run(me, slots, r);
                    if (ran && me == 0) {
                        single = Values.any(r);
                    }
                }));
            }
        }
        threads.add(thread(false, "dropper", new Random(seeds.nextLong()), r -> {
            Thread.sleep(5);
            Storm.drop(slots, r);
        }));
        threads.add(thread(false, "collector", new Random(seeds.nextLong()), r -> {
            Thread.sleep(20 + r.nextInt(200));
            if (r.nextInt(4) == 0) {
                System.gc();
            }
            Towa.collect();
        }));
        for (Thread t : threads) {
            t.start();
        }
        long end = System.nanoTime() + seconds * 1_000_000_000L;
        int comparisons = 0;
        while (System.nanoTime() < end && FAILURES.isEmpty()) {
            Thread.sleep(Math.clamp((end - System.nanoTime()) / 1_000_000, 1, 1500));
            RUNNING.writeLock().lock();
            try {
                verify("while all stand still");
                for (Subject<?> s : SUBJECTS.values()) {
                    s.check(world.get(s.name()));
                }
                comparisons++;
            } finally {
                RUNNING.writeLock().unlock();
            }
        }
        over = true;
        for (Thread t : threads) {
            t.join(60_000);
            if (t.isAlive()) {
                throw new AssertionError(t + " does not end: " + List.of(t.getStackTrace()));
            }
        }
        if (!FAILURES.isEmpty()) {
            throw new AssertionError(FAILURES.size() + " failures", FAILURES.peek());
        }
        long least = STEPS.values().stream().mapToLong(LongAdder::sum).min().orElse(0);
        long sum = STEPS.values().stream().mapToLong(LongAdder::sum).sum();
        System.out.println("soaked " + seconds + " s: " + sum + " steps, at least " + least + " of each of " + SUBJECTS.size() + " subjects; " + storm.told() + "; "
            + comparisons + " comparisons");
    }

    private interface Work {
        void run(Random r) throws Exception;
    }

    private static Thread thread(boolean virtual, String name, Random random, Work work) {
        Runnable body = () -> {
            try {
                while (!over) {
                    RUNNING.readLock().lock();
                    try {
                        work.run(random);
                    } finally {
                        RUNNING.readLock().unlock();
                    }
                }
            } catch (Throwable e) {
                e.printStackTrace(System.out);
                FAILURES.add(e);
            }
        };
        return virtual ? Thread.ofVirtual().name(name).unstarted(body) : Thread.ofPlatform().daemon().name(name).unstarted(body);
    }

    private static void step(Random r) throws Exception {
        Object[] names = SUBJECTS.keySet().toArray();
        Subject<?> s = SUBJECTS.get(names[r.nextInt(names.length)]);
        int times = 1 + r.nextInt(60);
        Object it = world.get(s.name());
        try {
            if (s.shared()) {
                steps(s, it, r, times);
            } else {
                synchronized (TURNS.get(s.name())) {
                    if (r.nextInt(40) == 0) {
                        // A section, in the midst of all others' stores.
                        Towa.atomically(() -> {
                            try {
                                steps(s, it, r, times);
                            } catch (Exception e) {
                                throw new IllegalStateException(e);
                            }
                        });
                    } else {
                        steps(s, it, r, times);
                    }
                    if (r.nextInt(200) == 0) {
                        // A new one: the old is garbage, in the heap and in the pool.
                        world.put(s.name(), s.make().get());
                    }
                }
            }
        } catch (Throwable e) {
            throw new AssertionError("subject " + s.name(), e);
        }
        STEPS.computeIfAbsent(s.name(), n -> new LongAdder()).add(times);
    }

    private static void steps(Subject<?> s, Object it, Random r, int times) throws Exception {
        for (int i = 0; i < times; i++) {
            s.step(it, r);
        }
    }

    private static void verify(String when) {
        List<String> wrong = Towa.verify();
        if (!wrong.isEmpty()) {
            System.out.println("DIFFERS " + when + ":\n  " + String.join("\n  ", wrong));
            System.exit(3);
        }
    }

    private static void dump(Path to) throws Exception {
        try (PrintWriter out = new PrintWriter(Files.newBufferedWriter(to))) {
            for (Subject<?> s : SUBJECTS.values()) {
                out.println(s.name() + ": " + s.check(world.get(s.name())));
            }
            Dump d = new Dump(out);
            d.show("world", world);
            d.show("slots", slots);
            d.show("single", single);
        }
    }
}
