package systemtest.crowd;

import com.sun.management.HotSpotDiagnosticMXBean;
import io.towa.DurableRoot;
import io.towa.Towa;
import java.lang.foreign.Arena;
import java.lang.foreign.FunctionDescriptor;
import java.lang.foreign.Linker;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.lang.invoke.MethodHandle;
import java.lang.invoke.MethodHandles;
import java.lang.invoke.MethodType;
import java.lang.management.ManagementFactory;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Random;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.atomic.AtomicLongFieldUpdater;
import java.util.concurrent.atomic.AtomicReferenceArray;
import java.util.concurrent.atomic.LongAdder;
import jdk.jfr.consumer.RecordingStream;

/**
 * Many virtual threads on two carriers, and a few platform threads, in each other's way on the same durable objects.
 *
 * <p>A virtual thread leaves its carrier wherever it waits, so also within a promotion, and does not while a native frame or a class being initialised
 * is below it: then it keeps its carrier while it waits. If what one waits for were ever held by one that has no carrier, all would stand
 * still; {@link #watch} sees that, shows every thread, and ends the machine with 4.
 *
 * <p>{@code CrowdProgram FILE SECONDS SEED [events]}
 */
public final class CrowdProgram {
    static final class Node {
        final int n;
        Node left;
        Node[] many;
        volatile Node next;
        volatile long count;
        long guarded;

        Node(int n) {
            this.n = n;
        }
    }

    static final class World {
        final Node[] slots = new Node[16];
        final AtomicReferenceArray<Node> cells = new AtomicReferenceArray<>(16);
        final ConcurrentHashMap<Integer, Long> map = new ConcurrentHashMap<>();
        final Node[] shared = new Node[4];
        volatile Node head;
        volatile Object seen;
    }

    @DurableRoot
    private static World world;

    private static final AtomicLongFieldUpdater<Node> COUNT = AtomicLongFieldUpdater.newUpdater(Node.class, "count");
    private static final int CROWD = 48;
    private static final int PLATFORM = 2;
    private static final ConcurrentLinkedQueue<Throwable> FAILURES = new ConcurrentLinkedQueue<>();
    private static final LongAdder STEPS = new LongAdder();
    private static final LongAdder COUNTED = new LongAdder();
    private static final LongAdder GUARDED = new LongAdder();
    private static final LongAdder MERGED = new LongAdder();
    private static Path dump;
    private static volatile boolean over;
    /** White nodes with links to each other: whose promotions meet. */
    private static volatile Node[] wave;

    public static void main(String[] args) throws Exception {
        dump = Path.of(args[0] + ".threads").toAbsolutePath();
        Towa.open(Path.of(args[0]));
        world = new World();
        for (int i = 0; i < world.shared.length; i++) {
            world.shared[i] = new Node(-1 - i);
        }
        boolean events = args.length > 3 && args[3].equals("events");
        Random seeds = new Random(Long.parseLong(args[2]));
        plan(seeds);
        long end = System.nanoTime() + Long.parseLong(args[1]) * 1_000_000_000L;
        try (RecordingStream stream = events ? stream() : null) {
            List<Thread> all = new ArrayList<>();
            for (int i = 0; i < CROWD + PLATFORM; i++) {
                Random r = new Random(seeds.nextLong());
                Runnable body = () -> run(r);
                all.add(i < CROWD ? Thread.ofVirtual().name("virtual-" + i).unstarted(body) : Thread.ofPlatform().daemon().name("platform-" + i).unstarted(body));
            }
            all.add(Thread.ofPlatform().daemon().name("collector").unstarted(CrowdProgram::collect));
            all.forEach(Thread::start);
            while (System.nanoTime() < end && FAILURES.isEmpty()) {
                watch(() -> Thread.sleep(200));
                plan(seeds);
            }
            over = true;
            for (Thread t : all) {
                watch(t::join);
            }
        }
        if (!FAILURES.isEmpty()) {
            throw new AssertionError(FAILURES.size() + " failures", FAILURES.peek());
        }
        check();
        Towa.close();
        System.out.println("done: " + STEPS + " steps");
    }

    private static RecordingStream stream() {
        RecordingStream s = new RecordingStream();
        s.enable("io.towa.Promotion").withoutThreshold();
        s.enable("io.towa.Collection");
        s.setMaxAge(Duration.ofSeconds(2));
        // What an observer saw becomes durable, too, by a thread that the program did not make.
        s.onEvent(e -> world.seen = e.getEventType().getName() + new Node(1).n);
        s.startAsync();
        return s;
    }

    private interface Wait {
        void run() throws InterruptedException;
    }

    /** Waits as {@code w} does, for as long as anybody makes a step. */
    private static void watch(Wait w) throws Exception {
        Thread me = Thread.currentThread();
        Thread watcher = new Thread(() -> {
            try {
                long before = -1;
                while (STEPS.sum() != before) {
                    before = STEPS.sum();
                    Thread.sleep(20_000);
                }
                Files.deleteIfExists(dump);
                ManagementFactory.getPlatformMXBean(HotSpotDiagnosticMXBean.class).dumpThreads(dump.toString(), HotSpotDiagnosticMXBean.ThreadDumpFormat.TEXT_PLAIN);
                System.out.println("nobody has made a step for 20 s; " + me.getName() + " waits; all threads are in " + dump);
                Runtime.getRuntime().halt(4);
            } catch (InterruptedException e) {
                // it went on
            } catch (Exception e) {
                FAILURES.add(e);
            }
        }, "watcher");
        watcher.setDaemon(true);
        watcher.start();
        w.run();
        watcher.interrupt();
        watcher.join();
    }

    private static void plan(Random r) {
        Node[] next = new Node[60];
        for (int i = 0; i < next.length; i++) {
            next[i] = new Node(i);
        }
        for (Node n : next) {
            n.left = next[r.nextInt(next.length)];
            n.next = next[r.nextInt(next.length)];
            n.many = r.nextInt(8) == 0 ? next.clone() : null;
        }
        wave = next;
    }

    private static void collect() {
        try {
            while (!over) {
                Thread.sleep(10);
                Towa.collect();
            }
        } catch (Throwable e) {
            FAILURES.add(e);
        }
    }

    private static void run(Random r) {
        try {
            while (!over) {
                switch (r.nextInt(24)) {
                    case 0 -> pinnedByNative(r);
                    case 1 -> pinnedByInitialiser(r);
                    case 2 -> Towa.atomically(() -> {
                        step(r);
                        Thread.yield();
                        step(r);
                    });
                    case 3 -> Thread.sleep(r.nextInt(2));
                    case 4 -> plan(r);
                    case 5 -> standStill(r);
                    default -> step(r);
                }
                STEPS.increment();
            }
        } catch (Throwable e) {
            e.printStackTrace(System.out);
            FAILURES.add(e);
        }
    }

    /** What shuts the gate: by a thread that others, on all carriers, wait for. */
    private static void standStill(Random r) {
        switch (r.nextInt(200)) {
            case 0 -> Towa.collect();
            // Its answer says nothing here: a store that is under way looks like a difference.
            case 1 -> Towa.verify();
            default -> step(r);
        }
    }

    private static void step(Random r) {
        step(r, r.nextInt(10));
    }

    /** All but {@link #guarded}: that holds a lock of the program's own while it gives up its carrier. */
    static void stepPinned(Random r) {
        step(r, r.nextInt(9));
    }

    private static void step(Random r, int what) {
        World w = world;
        Node[] white = wave;
        Node n = white[r.nextInt(white.length)];
        Node shared = w.shared[r.nextInt(w.shared.length)];
        switch (what) {
            case 0 -> w.slots[r.nextInt(16)] = n;
            case 1 -> w.cells.set(r.nextInt(16), n);
            case 2 -> {
                int i = r.nextInt(16);
                w.cells.compareAndSet(i, w.cells.get(i), n);
            }
            case 3 -> w.head = n;
            case 4 -> {
                n.next = white[r.nextInt(white.length)];
                n.left = new Node(r.nextInt());
            }
            case 5 -> {
                COUNT.incrementAndGet(shared);
                COUNTED.increment();
            }
            case 6 -> {
                w.map.merge(r.nextInt(20), 1L, Long::sum);
                MERGED.increment();
            }
            case 7 -> COUNT.addAndGet(n, 3);
            case 8 -> {
                w.slots[r.nextInt(16)] = null;
                w.cells.set(r.nextInt(16), null);
            }
            default -> guarded(shared, n, r);
        }
    }

    private static void guarded(Node shared, Node n, Random r) {
        synchronized (shared) {
            shared.guarded++;
            if (r.nextInt(10) == 0) {
                Thread.yield();
            }
            shared.left = n;
        }
        GUARDED.increment();
    }

    // ---- with a frame below that keeps the thread on its carrier

    private static final MethodHandle QSORT;
    private static final FunctionDescriptor COMPARE =
        FunctionDescriptor.of(ValueLayout.JAVA_INT, ValueLayout.ADDRESS, ValueLayout.ADDRESS);

    static {
        Linker linker = Linker.nativeLinker();
        QSORT = linker.downcallHandle(linker.defaultLookup().find("qsort").orElseThrow(),
            FunctionDescriptor.ofVoid(ValueLayout.ADDRESS, ValueLayout.JAVA_LONG, ValueLayout.JAVA_LONG, ValueLayout.ADDRESS));
    }

    private record Comparison(Random r) {
        int compare(MemorySegment a, MemorySegment b) {
            if (r.nextInt(2000) == 0) {
                Towa.collect();
            }
            stepPinned(r);
            return 0;
        }
    }

    private static void pinnedByNative(Random r) throws Throwable {
        try (Arena arena = Arena.ofConfined()) {
            MethodHandle compare = MethodHandles.lookup()
                .findVirtual(Comparison.class, "compare", MethodType.methodType(int.class, MemorySegment.class, MemorySegment.class))
                .bindTo(new Comparison(r));
            QSORT.invokeExact(arena.allocate(16), 4L, 4L, Linker.nativeLinker().upcallStub(compare, COMPARE, arena));
        }
    }

    /** Its initialiser is one of a hidden class, a new one each time. */
    static final class Initialised {
        static {
            stepPinned(new Random(System.nanoTime()));
        }
    }

    private static final byte[] INITIALISED = read();

    private static byte[] read() {
        try (var in = CrowdProgram.class.getResourceAsStream("CrowdProgram$Initialised.class")) {
            return in.readAllBytes();
        } catch (java.io.IOException e) {
            throw new java.io.UncheckedIOException(e);
        }
    }

    private static void pinnedByInitialiser(Random r) throws Throwable {
        if (r.nextInt(10) == 0) {
            MethodHandles.lookup().defineHiddenClass(INITIALISED, true);
        }
    }

    private static void check() {
        long counted = 0;
        long guarded = 0;
        for (Node n : world.shared) {
            counted += n.count;
            guarded += n.guarded;
        }
        long merged = world.map.values().stream().mapToLong(Long::longValue).sum();
        if (counted != COUNTED.sum() || guarded != GUARDED.sum() || merged != MERGED.sum()) {
            throw new AssertionError(counted + " of " + COUNTED + ", " + guarded + " of " + GUARDED + ", " + merged + " of " + MERGED);
        }
        List<String> wrong = Towa.verify();
        if (!wrong.isEmpty()) {
            throw new AssertionError("DRAM and replicas differ: " + wrong);
        }
    }
}
