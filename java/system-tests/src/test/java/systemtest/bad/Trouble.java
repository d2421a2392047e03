package systemtest.bad;

import io.towa.DurableRoot;
import io.towa.Towa;
import io.towa.TowaOptions;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicReference;

/**
 * Programs that run out of stack or heap, or are interrupted, in the midst of barriers: {@code Trouble KIND FILE}. What is durable must agree with DRAM after
 * it, and the program go on.
 */
public final class Trouble {
    @DurableRoot
    private static Node root;

    static final class Node {
        int n;
        long wide;
        volatile int shown;
        Object value;
        volatile Object published;
        final int[] numbers = new int[16];
        final Object[] things = new Object[16];
        final AtomicInteger atomic = new AtomicInteger();
        final AtomicReference<Object> reference = new AtomicReference<>();
        final Map<Integer, Object> map = new HashMap<>();
        final ConcurrentHashMap<Integer, Object> concurrent = new ConcurrentHashMap<>();
    }

    public static void main(String[] args) throws Exception {
        Towa.open(Path.of(args[1]), TowaOptions.DEFAULT.withCapacity(256 << 20));
        root = new Node();
        switch (args[0]) {
            case "stack" -> stack();
            case "heap" -> heap();
            case "garbage" -> garbage();
            case "interrupts" -> interrupts();
            default -> throw new IllegalArgumentException(args[0]);
        }
        verify("at the end");
        // Promotions, the collector and close would wait for ever for who never left a gate.
        root.value = new Object[] {"after", new int[3]};
        root.published = new Node();
        Towa.collect();
        Towa.close();
        System.out.println("done");
    }

    private static void verify(String when) {
        List<String> wrong = Towa.verify();
        if (!wrong.isEmpty()) {
            System.out.println("DIFFERS " + when + ":\n  " + String.join("\n  ", wrong));
            System.exit(3);
        }
    }

    // ---- the stack ends at every depth of every barrier

    private static final int KINDS = 14;
    private static int overflows;

    private static void stack() throws InterruptedException {
        // All that is linked at its first use is linked now, and not where the stack ends.
        for (int kind = 0; kind < KINDS; kind++) {
            for (int d = 0; d < 40; d++) {
                store(kind, d);
            }
        }
        int first = Integer.getInteger("kind", 0);
        int last = Integer.getInteger("kind", KINDS - 1);
        for (int kind = first; kind <= last; kind++) {
            overflows = 0;
            // Frames of two sizes in changing numbers before the dive: the stack ends in another place of the barrier each time.
            for (int pad = 0; pad < 30; pad++) {
                int store = kind;
                int frames = pad;
                Thread t = new Thread(null, () -> {
                    try {
                        pad(store, frames, 1, 2, 3);
                    } catch (StackOverflowError e) {
                        overflows++;
                    }
                }, "deep", 192 * 1024);
                within(t, "storing kind " + kind);
            }
            if (overflows == 0) {
                throw new AssertionError("no stack overflow");
            }
            verify("after the stack had ended storing kind " + kind);
            Thread other = new Thread(() -> {
                root.value = new Node();
                root.atomic.incrementAndGet();
                root.published = "x" + root.atomic.get();
                Towa.collect();
            });
            within(other, "after the stack had ended storing kind " + kind);
        }
    }

    private static void within(Thread t, String what) throws InterruptedException {
        t.setDaemon(true);
        t.start();
        t.join(20_000);
        if (t.isAlive()) {
            System.out.println("HANGS " + what + ": " + List.of(t.getStackTrace()));
            System.exit(4);
        }
    }

    private static int pad(int kind, int frames, long a, long b, long c) {
        if (frames > 0) {
            return pad(kind, frames - 1, b, c, a) + (int) a;
        }
        return dive(kind, 1);
    }

    private static int dive(int kind, int depth) {
        store(kind, depth);
        return dive(kind, depth + 1) + 1;
    }

    private static void store(int kind, int d) {
        Node r = root;
        switch (kind) {
            case 0 -> r.n = d;
            case 1 -> r.wide = d;
            case 2 -> r.shown = d;
            case 3 -> r.numbers[d & 15] = d;
            case 4 -> r.atomic.incrementAndGet();
            case 5 -> r.value = "value " + d;
            case 6 -> r.published = new int[] {d};
            case 7 -> r.things[d & 15] = new Object[] {d};
            case 8 -> r.reference.set(new Object[] {d});
            case 9 -> r.reference.compareAndSet(r.reference.get(), "cas " + d);
            case 10 -> r.map.put(d & 63, d);
            case 11 -> r.concurrent.put(d & 63, d);
            case 12 -> System.arraycopy(new Object[] {d, "x"}, 0, r.things, d & 7, 2);
            default -> Towa.atomically(() -> r.n = d);
        }
    }

    // ---- the heap ends

    private static void heap() {
        int ends = 0;
        for (int round = 0; round < 30; round++) {
            List<Object> hoard = new ArrayList<>();
            Node r = root;
            try {
                for (int i = 0;; i++) {
                    byte[] b = new byte[1 << 14 + round % 3];
                    hoard.add(b);
                    r.things[i & 15] = new Object[] {b, i};
                    r.map.put(i & 127, "value " + i);
                    r.concurrent.put(i & 127, new Node());
                    r.reference.set(b);
                    r.n = i;
                    r.atomic.incrementAndGet();
                }
            } catch (OutOfMemoryError e) {
                hoard = null;
                ends++;
            }
            // What was durable is held until the collector's next cycle.
            Towa.collect();
            verify("after the heap had ended");
            if (round % 5 == 4) {
                r.map.clear();
                r.concurrent.clear();
                Towa.collect();
            }
        }
        System.out.println(ends + " times out of memory");
    }

    /** The heap is full, to the last few bytes, of what was durable: only a cycle of the collector can free that, so it needs no more than there is. */
    private static void garbage() {
        int ends = 0;
        for (int round = 0; round < 20; round++) {
            // Faster than the collector's thread looks; then what is left, in small pieces.
            ends += replaceUntilFull(4000, 100_000) ? 1 : 0;
            replaceUntilFull(0, 20_000);
            Towa.collect();
            verify("after the heap had ended");
        }
        System.out.println(ends + " times out of memory");
    }

    private static boolean replaceUntilFull(int length, int most) {
        Node r = root;
        try {
            for (int i = 0; i < most; i++) {
                r.things[i & 15] = new int[length];
            }
            return false;
        } catch (OutOfMemoryError e) {
            return true;
        }
    }

    // ---- interrupts

    private static void interrupts() throws InterruptedException {
        Node r = root;
        Thread[] threads = new Thread[3];
        boolean[] lost = new boolean[1];
        long end = System.nanoTime() + 3_000_000_000L;
        for (int t = 0; t < threads.length; t++) {
            int me = t;
            threads[t] = new Thread(() -> {
                Node[] common = new Node[20];
                while (System.nanoTime() < end) {
                    Thread.currentThread().interrupt();
                    for (int i = 0; i < common.length; i++) {
                        common[i] = new Node();
                        common[i].value = common[Math.max(0, i - 1)];
                    }
                    r.things[me] = common[common.length - 1];
                    r.published = common[5];
                    r.reference.set(common[7]);
                    Towa.atomically(() -> r.things[8] = common[3]);
                    Towa.collect();
                    // Still there: a library that waits must not swallow it.
                    if (!Thread.interrupted()) {
                        lost[0] = true;
                    }
                }
            });
            threads[t].start();
        }
        while (System.nanoTime() < end) {
            for (Thread t : threads) {
                t.interrupt();
            }
            Thread.sleep(1);
        }
        for (Thread t : threads) {
            t.join();
        }
        if (lost[0]) {
            throw new AssertionError("an interrupt was swallowed");
        }
    }
}
