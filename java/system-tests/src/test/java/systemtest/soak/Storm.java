package systemtest.soak;

import io.towa.NotDurableException;
import java.util.Random;
import java.util.concurrent.BrokenBarrierException;
import java.util.concurrent.CyclicBarrier;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.concurrent.atomic.AtomicReferenceArray;

/**
 * Promotions that interfere: several threads store, at the same moment, what reaches the same white objects, while others write to these.
 *
 * <p>Each wave is a fresh graph that all threads know. A thread hangs parts of it into durable slots, and goes on to change links in it without any lock,
 * plainly and atomically: what it changes is white, grey or durable, it cannot know. Some waves hold an object that cannot be durable: who reaches it is
 * refused, and the others, whose batches joined the refused one, must not be.
 */
final class Storm {
    static final class Node {
        final int n;
        Node a;
        Node b;
        volatile Node c;
        int plain;
        volatile long published;
        Object payload;

        Node(int n) {
            this.n = n;
        }
    }

    static final class Slots {
        final Node[] plain = new Node[32];
        final AtomicReferenceArray<Node> atomic = new AtomicReferenceArray<>(32);
        volatile Node head;
    }

    private static final int NODES = 120;
    private final int threads;
    private final CyclicBarrier together;
    private final Random planner;
    private volatile Node[] wave;
    private volatile Node poisoned;
    private final java.util.concurrent.atomic.LongAdder waves = new java.util.concurrent.atomic.LongAdder();
    private final java.util.concurrent.atomic.LongAdder refused = new java.util.concurrent.atomic.LongAdder();

    Storm(int threads, long seed) {
        this.threads = threads;
        planner = new Random(seed);
        together = new CyclicBarrier(threads, this::plan);
    }

    private void plan() {
        Node[] next = new Node[NODES];
        for (int i = 0; i < NODES; i++) {
            next[i] = new Node(i);
            next[i].payload = Values.any(planner);
        }
        for (int i = 0; i < NODES; i++) {
            next[i].a = next[planner.nextInt(NODES)];
            next[i].b = i + 1 < NODES ? next[i + 1] : null;
            next[i].c = planner.nextInt(3) == 0 ? next[planner.nextInt(NODES)] : null;
        }
        poisoned = null;
        if (planner.nextInt(4) == 0) {
            // Reached by one thread only, whose batch fails while it reaches what the others want too.
            Node bad = new Node(-1);
            bad.a = next[planner.nextInt(NODES)];
            bad.b = next[0];
            bad.payload = Thread.currentThread();
            poisoned = bad;
        }
        wave = next;
        waves.increment();
    }

    /** One wave, by thread {@code me} of those that take part; false if the others did not come. */
    boolean run(int me, Slots slots, Random r) throws InterruptedException {
        try {
            together.await(300, TimeUnit.MILLISECONDS);
        } catch (BrokenBarrierException | TimeoutException e) {
            if (me == 0) {
                together.reset();
            }
            return false;
        }
        Node[] w = wave;
        Node bad = me == 1 % threads ? poisoned : null;
        if (bad != null) {
            try {
                slots.plain[0] = bad;
                throw new AssertionError("a thread became durable");
            } catch (NotDurableException e) {
                if (slots.plain[0] == bad || !e.getMessage().contains("Thread")) {
                    throw new AssertionError("refused, and stored", e);
                }
                refused.increment();
            }
        }
        for (int i = 0; i < 40; i++) {
            Node n = w[r.nextInt(NODES)];
            switch (r.nextInt(9)) {
                case 0 -> slots.plain[r.nextInt(32)] = n;
                case 1 -> slots.atomic.set(r.nextInt(32), n);
                case 2 -> {
                    int k = r.nextInt(32);
                    slots.atomic.compareAndSet(k, slots.atomic.get(k), n);
                }
                case 3 -> slots.head = n;
                case 4 -> n.a = w[r.nextInt(NODES)];
                case 5 -> n.c = w[r.nextInt(NODES)];
                case 6 -> n.plain += me;
                case 7 -> n.published = r.nextLong();
                default -> n.payload = Values.any(r);
            }
        }
        return true;
    }

    /** Drops what was kept, so that replicas can be freed. */
    static void drop(Slots slots, Random r) {
        for (int i = 0; i < 8; i++) {
            slots.plain[r.nextInt(32)] = null;
            slots.atomic.set(r.nextInt(32), null);
        }
        slots.head = null;
    }

    String told() {
        return waves.sum() + " waves, " + refused.sum() + " refusals";
    }
}
