package systemtest.inside;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertSame;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.towa.DurableRoot;
import io.towa.NotDurableException;
import io.towa.Towa;
import java.nio.file.Path;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Collection;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.LinkedList;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.ConcurrentSkipListMap;
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.atomic.AtomicReference;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

/** What cannot be durable is refused by a message that names the way to it, before anything is stored. */
class NotDurableIT {
    @DurableRoot
    private static Object root;
    @DurableRoot
    private static volatile Object published;

    @TempDir
    Path folder;

    static final class Order {
        Object session;
        volatile Object shown;
        transient Thread worker;
        transient volatile Thread watcher;
    }

    @BeforeEach
    void open() {
        root = null;
        published = null;
        Towa.open(folder.resolve("pool.towa"), Pool.SMALL);
    }

    @AfterEach
    void close() {
        Pool.sound();
        Towa.close();
        root = null;
        published = null;
    }

    private static void refused(org.junit.jupiter.api.function.Executable store, String... words) {
        Pool.says(assertThrows(NotDurableException.class, store), words);
    }

    private static Object bad() {
        Order o = new Order();
        o.session = new Object[] {"fine", Thread.currentThread()};
        return o;
    }

    @Test
    void theWayIsNamed() {
        Map<String, Order> orders = new HashMap<>();
        root = orders;
        refused(() -> orders.put("one", (Order) bad()), "HashMap$Node.value", "Order.session", "Object[1]", "Thread");
        assertEquals(Map.of(), orders);
    }

    @Test
    void mapsStayAsTheyAre() {
        for (Map<Object, Object> m : List.<Map<Object, Object>>of(new HashMap<>(), new LinkedHashMap<>(), new TreeMap<>(), new ConcurrentHashMap<>(),
            new ConcurrentSkipListMap<>(), new java.util.Hashtable<>(), new java.util.IdentityHashMap<>())) {
            m.put("a", 1);
            root = m;
            String before = m.toString();
            for (int i = 0; i < 50; i++) {
                Object key = i % 2 == 0 ? "a" : "k" + i;
                refused(() -> m.put(key, bad()), "Thread");
                if (!(m instanceof java.util.IdentityHashMap)) {
                    assertEquals(before, m.toString());
                }
            }
            m.put("b", 2);
            assertEquals(2, m.get("b"), () -> "" + m.getClass());
            Pool.sound();
        }
    }

    @Test
    void collectionsStayAsTheyAre() {
        for (Collection<Object> c : List.<Collection<Object>>of(new ArrayList<>(), new LinkedList<>(), new ArrayDeque<>(), new ConcurrentLinkedQueue<>(),
            new LinkedBlockingQueue<>(), new CopyOnWriteArrayList<>(), new java.util.Vector<>(), new java.util.concurrent.LinkedBlockingDeque<>(),
            new java.util.concurrent.ConcurrentLinkedDeque<>(), new java.util.concurrent.ArrayBlockingQueue<>(9))) {
            c.add("a");
            root = c;
            refused(() -> c.add(bad()), "Thread");
            assertEquals("[a]", c.toString(), () -> "" + c.getClass());
            c.add("b");
            assertEquals("[a, b]", c.toString());
            assertEquals(2, c.size());
            Pool.sound();
        }
    }

    @Test
    void fieldsElementsAtomicsAndRoots() throws Exception {
        Order o = new Order();
        Object[] a = new Object[3];
        AtomicReference<Object> r = new AtomicReference<>("old");
        root = new Object[] {o, a, r};
        refused(() -> o.session = bad(), "Order.session -> Object[1]", "Thread");
        refused(() -> o.shown = bad(), "Thread");
        refused(() -> a[1] = bad(), "Thread");
        refused(() -> System.arraycopy(new Object[] {"x", bad()}, 0, a, 0, 2), "Thread");
        refused(() -> r.set(bad()), "Thread");
        refused(() -> r.compareAndSet("old", bad()), "Thread");
        refused(() -> r.getAndSet(bad()), "Thread");
        refused(() -> Order.class.getDeclaredField("session").set(o, bad()), "Thread");
        refused(() -> java.lang.reflect.Array.set(a, 0, bad()), "Thread");
        assertNull(o.session);
        assertNull(o.shown);
        assertNull(a[0]);
        assertNull(a[1]);
        assertSame("old", r.get());
        Object before = root;
        refused(() -> root = bad(), "Thread");
        assertSame(before, root);
        refused(() -> published = bad(), "Thread");
        assertNull(published);
    }

    @Test
    void transientFieldsMayReferToAnything() throws Exception {
        Order o = new Order();
        root = o;
        o.worker = Thread.currentThread();
        o.watcher = Thread.currentThread();
        Order.class.getDeclaredField("worker").set(o, null);
        Order.class.getDeclaredField("watcher").set(o, Thread.currentThread());
        assertSame(Thread.currentThread(), o.watcher);
        assertTrue(!Towa.isDurable(Thread.currentThread()));
    }

    @Test
    void eachKindSaysWhy() {
        Object[] slot = new Object[1];
        root = slot;
        Object captured = slot;
        refused(() -> slot[0] = (Runnable) () -> captured.hashCode(), "lambda");
        refused(() -> slot[0] = new ThreadLocal<>(), "ThreadLocal");
        refused(() -> slot[0] = new java.io.ByteArrayInputStream(new byte[1]), "ByteArrayInputStream");
        refused(() -> slot[0] = getClass().getClassLoader(), "ClassLoader");
        refused(() -> slot[0] = new java.lang.ref.WeakReference<>(slot), "WeakReference");
        refused(() -> slot[0] = new java.util.concurrent.CompletableFuture<>(), "CompletableFuture");
        refused(() -> slot[0] = java.nio.ByteBuffer.allocate(3), "ByteBuffer");
        assertNull(slot[0]);
        slot[0] = "fine";
    }

    @Test
    void skippedIfSoWished() {
        Towa.close();
        Towa.open(folder.resolve("skipping.towa"), Pool.SMALL.skippingNotDurable());
        Order o = new Order();
        root = o;
        o.session = Thread.currentThread();
        assertSame(Thread.currentThread(), o.session);
        assertTrue(Towa.metrics().skipped() > 0);
    }
}
