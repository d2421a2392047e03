package systemtest.inside;

import static org.junit.jupiter.api.Assertions.assertNull;

import io.towa.DurableRoot;
import io.towa.Towa;
import io.towa.TowaOptions;
import java.lang.invoke.MethodHandles;
import java.lang.invoke.VarHandle;
import java.nio.file.Path;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicReference;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

/**
 * The thesis' races, two threads each, on fresh objects in lockstep: after each few hundred rounds all replicas must be as DRAM is. {@code make stress-java} has them
 * under jcstress, for longer; {@code -Dtowa.races=SECONDS} for each here.
 */
class RacesIT {
    private static final long SECONDS = Long.getLong("towa.races", 2);
    private static final int BATCH = 400;

    @DurableRoot
    private static Node[] kept;
    @DurableRoot
    private static Object[] others;

    static final class Node {
        int x;
        int y;
        Object next;
        volatile int v;
        volatile Object w;
        final int[] a = new int[8];
        final Object[] o = new Object[4];
        final AtomicInteger counter = new AtomicInteger();
        final AtomicReference<Object> link = new AtomicReference<>();
    }

    private static final VarHandle V;
    private static final VarHandle W;
    private static final VarHandle ELEMENT = MethodHandles.arrayElementVarHandle(int[].class);

    static {
        try {
            V = MethodHandles.lookup().findVarHandle(Node.class, "v", int.class);
            W = MethodHandles.lookup().findVarHandle(Node.class, "w", Object.class);
        } catch (ReflectiveOperationException e) {
            throw new ExceptionInInitializerError(e);
        }
    }

    @TempDir
    Path folder;

    @BeforeEach
    void open() {
        kept = null;
        others = null;
        Towa.open(folder.resolve("pool"), TowaOptions.DEFAULT.withCapacity(256 << 20));
    }

    @AfterEach
    void close() {
        Towa.close();
        kept = null;
        others = null;
    }

    private interface Act {
        void on(Node n, int i);
    }

    /** What both threads wait for each other with; and the first error of either. */
    private volatile int left;
    private volatile int right;
    private volatile Node[] fresh;
    private volatile Throwable failed;

    private void race(Act one, Act two) throws InterruptedException {
        race(false, one, two);
    }

    private void race(boolean durable, Act one, Act two) throws InterruptedException {
        long end = System.nanoTime() + SECONDS * 1_000_000_000L;
        for (int round = 0; round < 3 || System.nanoTime() < end; round++) {
            Node[] nodes = new Node[BATCH];
            for (int i = 0; i < BATCH; i++) {
                nodes[i] = new Node();
            }
            kept = durable ? nodes : new Node[BATCH];
            others = new Object[BATCH];
            fresh = nodes;
            left = 0;
            right = 0;
            Thread other = new Thread(() -> run(two, false));
            other.start();
            run(one, true);
            other.join();
            assertNull(failed, () -> "" + failed);
            Pool.sound();
        }
    }

    private void run(Act act, boolean first) {
        try {
            Node[] nodes = fresh;
            for (int i = 0; i < BATCH; i++) {
                if (first) {
                    left = i + 1;
                    while (right <= i && failed == null) {
                        Thread.onSpinWait();
                    }
                } else {
                    right = i + 1;
                    while (left <= i && failed == null) {
                        Thread.onSpinWait();
                    }
                }
                act.on(nodes[i], i);
            }
        } catch (Throwable e) {
            failed = e;
        }
    }

    @Test
    void twoPromoters() throws InterruptedException {
        race((n, i) -> kept[i] = n, (n, i) -> others[i] = n);
    }

    @Test
    void plainStoresWhilePromoted() throws InterruptedException {
        race((n, i) -> kept[i] = n, (n, i) -> {
            n.x = 1;
            n.y = 2;
            n.a[3] = 4;
            n.x = 3;
        });
    }

    @Test
    void referencesWhilePromoted() throws InterruptedException {
        race((n, i) -> kept[i] = n, (n, i) -> {
            Node m = new Node();
            n.next = m;
            m.x = 5;
            n.o[1] = m;
            n.w = m;
            m.v = 6;
        });
    }

    @Test
    void volatileAndAtomicStoresWhilePromoted() throws InterruptedException {
        race((n, i) -> kept[i] = n, (n, i) -> {
            n.v = 1;
            n.counter.incrementAndGet();
            n.link.set(n.counter);
            n.link.compareAndSet(n.counter, "linked");
            V.getAndAdd(n, 4);
            ELEMENT.getAndAdd(n.a, 2, 7);
            n.counter.incrementAndGet();
        });
    }

    @Test
    void overlappingGraphs() throws InterruptedException {
        race((n, i) -> {
            Node m = fresh[i ^ 1];
            n.next = m;
            kept[i] = n;
            m.x++;
        }, (n, i) -> {
            Node m = fresh[i ^ 1];
            m.next = n;
            m.w = n;
            others[i] = m;
            n.y++;
        });
    }

    @Test
    void twoWritersOfOneField() throws InterruptedException {
        race((n, i) -> {
            n.x = 1;
            kept[i] = n;
            n.next = "one";
            n.x = 2;
        }, (n, i) -> {
            n.x = 3;
            n.next = "two";
            n.x = 4;
        });
    }

    /** The plain one takes no lock, the other one does. */
    @Test
    void plainAndVolatileStoresToOneField() throws InterruptedException {
        race(true, (n, i) -> {
            V.set(n, 1);
            ELEMENT.set(n.a, 1, 1);
            W.set(n, "plain");
            n.counter.setPlain(5);
        }, (n, i) -> {
            V.setVolatile(n, 2);
            ELEMENT.getAndAdd(n.a, 1, 16);
            W.setRelease(n, "released");
            n.counter.incrementAndGet();
        });
    }
}
