package io.towa.graph;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.nio.file.Path;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.HashSet;
import java.util.Hashtable;
import java.util.IdentityHashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.ArrayBlockingQueue;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.LinkedBlockingDeque;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.PriorityBlockingQueue;
import java.util.concurrent.TimeUnit;
import jdk.internal.misc.Unsafe;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;

/** Collections as a crash leaves them in the midst of an operation: what is in them is in them afterwards, and they work. */
class RepairsTest {
    private static final Unsafe U = Unsafe.getUnsafe();

    private static long at(Class<?> c, String field) {
        return U.objectFieldOffset(c, field);
    }

    private static Class<?> nested(String name) throws Exception {
        return Class.forName("java.util.concurrent." + name);
    }

    /** All keys collide in their lower bits, and some wholly. */
    record Key(int n) implements Comparable<Key> {
        @Override
        public int hashCode() {
            return n / 3 << 20;
        }

        @Override
        public int compareTo(Key k) {
            return Integer.compare(n, k.n);
        }
    }

    private static ConcurrentHashMap<Object, Object> map(int n, boolean collide) {
        ConcurrentHashMap<Object, Object> m = new ConcurrentHashMap<>();
        for (int i = 0; i < n; i++) {
            m.put(collide ? new Key(i) : "k" + i, "v" + i);
        }
        return m;
    }

    @SuppressWarnings("unchecked")
    private static void check(Map<Object, Object> expected, Path p) {
        for (int round = 0; round < 2; round++) {
            Map<Object, Object> back = (Map<Object, Object>) SavedPool.load(p);
            assertTrue(U.getInt(back, at(ConcurrentHashMap.class, "sizeCtl")) >= 0);
            assertNull(U.getReference(back, at(ConcurrentHashMap.class, "nextTable")));
            assertEquals(expected.size(), back.size());
            assertEquals(new HashMap<>(expected), new HashMap<>(back));
            for (Object k : expected.keySet()) {
                assertEquals(expected.get(k), back.get(k));
            }
        }
        Map<Object, Object> back = (Map<Object, Object>) SavedPool.load(p);
        for (int i = 0; i < 2000; i++) {
            back.put("more" + i, i);
            back.put(new Key(i), i);
        }
        for (int i = 0; i < 2000; i++) {
            assertEquals(i, back.remove("more" + i));
            assertEquals(i, back.remove(new Key(i)));
        }
    }

    /** Stops the map in the midst of a resize: bins from the last one down to {@code stop} are moved, with the map's own code. */
    private static void stopInResize(ConcurrentHashMap<Object, Object> m, int stop) throws Exception {
        Class<?> c = ConcurrentHashMap.class;
        Object[] table = (Object[]) U.getReference(m, at(c, "table"));
        int n = table.length;
        Class<?> node = nested("ConcurrentHashMap$Node");
        Object[] next = (Object[]) java.lang.reflect.Array.newInstance(node, 2 * n);
        var forwarding = nested("ConcurrentHashMap$ForwardingNode").getDeclaredConstructors()[0];
        Object fwd = U.allocateInstance(forwarding.getDeclaringClass());
        U.putInt(fwd, at(node, "hash"), -1);
        U.putReference(fwd, at(forwarding.getDeclaringClass(), "nextTable"), next);
        U.putInt(m, at(c, "sizeCtl"), (Integer.numberOfLeadingZeros(n) | 1 << 15) << 16 + 0);
        U.putInt(m, at(c, "sizeCtl"), U.getInt(m, at(c, "sizeCtl")) + 2);
        U.putReference(m, at(c, "nextTable"), next);
        for (int i = n - 1; i >= stop; i--) {
            for (Object e = table[i] == null ? null : table[i].getClass().getSimpleName().equals("TreeBin")
                ? U.getReference(table[i], at(nested("ConcurrentHashMap$TreeBin"), "first")) : table[i]; e != null; e = U.getReference(e, at(node, "next"))) {
                Object copy = U.allocateInstance(node);
                int hash = U.getInt(e, at(node, "hash"));
                U.putInt(copy, at(node, "hash"), hash);
                U.putReference(copy, at(node, "key"), U.getReference(e, at(node, "key")));
                U.putReference(copy, at(node, "val"), U.getReference(e, at(node, "val")));
                U.putReference(copy, at(node, "next"), next[hash & 2 * n - 1]);
                next[hash & 2 * n - 1] = copy;
            }
            if (i > stop) {
                table[i] = fwd;
            }
        }
    }

    @ParameterizedTest
    @ValueSource(booleans = {false, true})
    void aConcurrentHashMapCaughtInAResize(boolean collide) throws Exception {
        for (int n : new int[] {1, 10, 60, 300}) {
            for (int stop : new int[] {0, 1, 7, 15}) {
                ConcurrentHashMap<Object, Object> m = map(n, collide);
                Map<Object, Object> expected = new HashMap<>(m);
                stopInResize(m, stop);
                check(expected, SavedPool.save(m));
            }
        }
    }

    @Test
    void aConcurrentHashMapCaughtBeforeAndAfterAResize() throws Exception {
        ConcurrentHashMap<Object, Object> m = map(40, false);
        Map<Object, Object> expected = new HashMap<>(m);
        U.putInt(m, at(ConcurrentHashMap.class, "sizeCtl"), -2145714174);
        check(expected, SavedPool.save(m));
        ConcurrentHashMap<Object, Object> empty = new ConcurrentHashMap<>();
        U.putInt(empty, at(ConcurrentHashMap.class, "sizeCtl"), -1);
        check(Map.of(), SavedPool.save(empty));
    }

    @Test
    void aReservedBinIsFree() throws Exception {
        ConcurrentHashMap<Object, Object> m = map(5, false);
        Map<Object, Object> expected = new HashMap<>(m);
        Object[] table = (Object[]) U.getReference(m, at(ConcurrentHashMap.class, "table"));
        for (int i = 0; i < table.length; i++) {
            if (table[i] == null) {
                table[i] = U.allocateInstance(nested("ConcurrentHashMap$ReservationNode"));
                U.putInt(table[i], at(nested("ConcurrentHashMap$Node"), "hash"), -3);
            }
        }
        check(expected, SavedPool.save(m));
    }

    @Test
    void aTreeBinWhoseTreeLacksWhatItsListHas() throws Exception {
        Class<?> treeNode = nested("ConcurrentHashMap$TreeNode");
        for (String side : new String[] {"left", "right"}) {
            ConcurrentHashMap<Object, Object> m = map(60, true);
            Map<Object, Object> expected = new HashMap<>(m);
            Object[] table = (Object[]) U.getReference(m, at(ConcurrentHashMap.class, "table"));
            boolean some = false;
            for (int i = 0; i < table.length; i++) {
                if (table[i] != null && table[i].getClass().getSimpleName().equals("TreeBin")) {
                    Object root = U.getReference(table[i], at(nested("ConcurrentHashMap$TreeBin"), "root"));
                    U.putReference(root, at(treeNode, side), null);
                    some = true;
                }
            }
            assertTrue(some);
            check(expected, SavedPool.save(m));
        }
    }

    @Test
    void manyMapsOfWhichSomeAreBroken() throws Exception {
        Object[] maps = new Object[200];
        for (int i = 0; i < maps.length; i++) {
            maps[i] = map(i, i % 2 == 0);
            if (i % 3 == 1) {
                stopInResize(cast(maps[i]), i % 5);
            }
        }
        Object[] back = (Object[]) SavedPool.load(SavedPool.save(maps));
        for (int i = 0; i < maps.length; i++) {
            assertEquals(new HashMap<>(map(i, i % 2 == 0)), new HashMap<>(RepairsTest.<Map<Object, Object>>cast(back[i])), "map " + i);
        }
    }

    @SuppressWarnings("unchecked")
    private static <T> T cast(Object o) {
        return (T) o;
    }

    // ---- queues

    @Test
    void arrayBlockingQueues() throws Exception {
        Class<?> c = ArrayBlockingQueue.class;
        for (int fill = 0; fill <= 4; fill++) {
            for (int start = 0; start < 4; start++) {
                for (int state = 0; state < 5; state++) {
                    ArrayBlockingQueue<Object> q = new ArrayBlockingQueue<>(4);
                    for (int i = 0; i < start; i++) {
                        q.add("x");
                        q.remove();
                    }
                    List<Object> expected = new ArrayList<>();
                    for (int i = 0; i < fill; i++) {
                        q.add("e" + i);
                        expected.add("e" + i);
                    }
                    Object[] items = (Object[]) U.getReference(q, at(c, "items"));
                    int put = U.getInt(q, at(c, "putIndex"));
                    int take = U.getInt(q, at(c, "takeIndex"));
                    if (state <= 1 && fill < 4) {
                        items[put] = "new";
                        expected.add("new");
                        U.putInt(q, at(c, "putIndex"), state == 0 ? put : (put + 1) % 4);
                    } else if (state <= 3 && fill > 0) {
                        items[take] = null;
                        expected.remove(0);
                        U.putInt(q, at(c, "takeIndex"), state == 2 ? take : (take + 1) % 4);
                    }
                    ArrayBlockingQueue<Object> back = cast(SavedPool.roundTrip(q));
                    assertArrayEquals(expected.toArray(), back.toArray(), fill + " " + start + " " + state);
                    while (!expected.isEmpty()) {
                        assertEquals(expected.remove(0), back.remove());
                    }
                    for (int i = 0; i < 4; i++) {
                        assertTrue(back.offer(i));
                    }
                    assertEquals(0, back.take());
                }
            }
        }
    }

    @Test
    void linkedBlockingDeques() throws Exception {
        Class<?> c = LinkedBlockingDeque.class;
        Class<?> node = nested("LinkedBlockingDeque$Node");
        for (int n = 0; n < 4; n++) {
            for (int state = 0; state < 8; state++) {
                LinkedBlockingDeque<Object> q = new LinkedBlockingDeque<>();
                List<Object> expected = new ArrayList<>();
                for (int i = 0; i < n; i++) {
                    q.add("e" + i);
                    expected.add("e" + i);
                }
                Object first = U.getReference(q, at(c, "first"));
                Object last = U.getReference(q, at(c, "last"));
                if (n > 0 && state == 1) {
                    U.putReference(first, at(node, "item"), null);
                    expected.remove(0);
                } else if (n > 0 && state == 2) {
                    U.putReference(first, at(node, "item"), null);
                    U.putReference(first, at(node, "next"), first);
                    expected.remove(0);
                } else if (n > 0 && state == 3) {
                    U.putReference(last, at(node, "item"), null);
                    U.putReference(last, at(node, "prev"), last);
                    expected.remove(n - 1);
                } else if (state == 4 || state == 5) {
                    Object x = U.allocateInstance(node);
                    U.putReference(x, at(node, "item"), "new");
                    U.putReference(x, at(node, state == 4 ? "prev" : "next"), state == 4 ? last : first);
                    U.putReference(q, at(c, state == 4 ? "last" : "first"), x);
                    expected.add(state == 4 ? n : 0, "new");
                } else if (state == 6) {
                    U.putInt(q, at(c, "count"), n + 3);
                }
                LinkedBlockingDeque<Object> back = cast(SavedPool.roundTrip(q));
                assertArrayEquals(expected.toArray(), back.toArray(), n + " " + state);
                assertEquals(expected.size(), back.size());
                back.addFirst("f");
                back.addLast("l");
                assertEquals("f", back.takeFirst());
                assertEquals("l", back.takeLast());
                while (!expected.isEmpty()) {
                    assertEquals(expected.remove(expected.size() - 1), back.takeLast());
                }
                assertNull(back.poll());
            }
        }
    }

    @Test
    void linkedBlockingQueues() throws Exception {
        Class<?> c = LinkedBlockingQueue.class;
        Class<?> node = nested("LinkedBlockingQueue$Node");
        for (int n = 0; n < 4; n++) {
            for (int state = 0; state < 4; state++) {
                LinkedBlockingQueue<Object> q = new LinkedBlockingQueue<>();
                List<Object> expected = new ArrayList<>();
                for (int i = 0; i < n; i++) {
                    q.add("e" + i);
                    expected.add("e" + i);
                }
                Object head = U.getReference(q, at(c, "head"));
                if (state == 1) {
                    // put: linked, not yet the last, not yet counted
                    Object x = U.allocateInstance(node);
                    U.putReference(x, at(node, "item"), "new");
                    U.putReference(U.getReference(q, at(c, "last")), at(node, "next"), x);
                    expected.add("new");
                } else if (state == 2 && n > 0) {
                    // take: the head has moved, its item is still there or gone, not counted
                    Object first = U.getReference(head, at(node, "next"));
                    U.putReference(head, at(node, "next"), head);
                    U.putReference(q, at(c, "head"), first);
                    expected.remove(0);
                } else if (state == 3 && n > 0) {
                    // take, before the head has moved: the last one is left, and nothing hangs
                    U.putReference(head, at(node, "next"), head);
                    expected = new ArrayList<>(expected.subList(n - 1, n));
                }
                LinkedBlockingQueue<Object> back = cast(SavedPool.roundTrip(q));
                assertArrayEquals(expected.toArray(), back.toArray(), n + " " + state);
                back.put("z");
                expected.add("z");
                while (!expected.isEmpty()) {
                    assertEquals(expected.remove(0), back.poll(5, TimeUnit.SECONDS));
                }
                assertEquals(0, back.size());
                assertNull(back.poll());
            }
        }
    }

    @Test
    void aSpinLockIsFree() throws Exception {
        PriorityBlockingQueue<Integer> q = new PriorityBlockingQueue<>(2);
        q.add(1);
        U.putInt(q, at(PriorityBlockingQueue.class, "allocationSpinLock"), 1);
        PriorityBlockingQueue<Integer> back = cast(SavedPool.roundTrip(q));
        for (int i = 0; i < 100; i++) {
            back.add(i);
        }
        assertEquals(101, back.size());
    }

    // ---- hashes of constants

    enum E {
        A, B, C
    }

    record Composite(E e, int n) {}

    @Test
    void constantsWithAnotherHashInThisRun() throws Exception {
        for (Map<Object, Object> m : List.<Map<Object, Object>>of(new HashMap<>(), new LinkedHashMap<>(), new ConcurrentHashMap<>(), new Hashtable<>(),
            new IdentityHashMap<>())) {
            for (int n : new int[] {1, 3, 30, 300}) {
                m.clear();
                for (int i = 0; i < n; i++) {
                    m.put("k" + i, i);
                    m.put(i % 2 == 0 ? E.values()[i % 3] : String.class, "c");
                    if (!(m instanceof IdentityHashMap)) {
                        m.put(new Composite(E.values()[i % 3], i), i);
                    }
                }
                Map<Object, Object> expected = new TreeMap<>((a, b) -> a.toString().compareTo(b.toString()));
                expected.putAll(m);
                Path p = SavedPool.save(m);
                otherRun(p);
                for (int round = 0; round < 2; round++) {
                    Map<Object, Object> back = cast(SavedPool.load(p));
                    assertEquals(expected.size(), back.size());
                    for (Map.Entry<Object, Object> e : back.entrySet()) {
                        assertEquals(e.getValue(), back.get(e.getKey()), m.getClass() + " " + n + " " + e.getKey());
                        assertEquals(expected.get(e.getKey()), e.getValue());
                    }
                    if (!(m instanceof IdentityHashMap)) {
                        assertEquals(expected.keySet(), new HashSet<>(back.keySet()));
                    }
                    if (m instanceof LinkedHashMap) {
                        assertEquals(new ArrayList<>(m.keySet()), new ArrayList<>(back.keySet()));
                    }
                }
            }
        }
    }

    /** Changes the file to what a run in which constants have other hashes would have written: their hashes, and the places of entries. */
    private static void otherRun(Path p) throws Exception {
        SavedPool.open(p);
        Object o = SavedPool.root;
        java.util.List<Object> constants = new ArrayList<>(List.of(E.A, E.B, E.C, String.class));
        for (Object c : constants) {
            long word = Replicas.find(c);
            if (word != 0) {
                io.towa.medium.Nvm.putInt(Replicas.position(word) + io.towa.pool.Layout.HASH, System.identityHashCode(c) ^ 0x155);
            }
        }
        misplace(o);
        DurableGraph.close();
    }

    /** Turns the table by one place, and the hashes by as much: as if every hash were another. */
    private static void misplace(Object m) throws Exception {
        Class<?> c = m.getClass();
        while (c.getSuperclass() != null && !hasTable(c)) {
            c = c.getSuperclass();
        }
        Object[] table = (Object[]) U.getReference(m, at(c, "table"));
        if (m instanceof IdentityHashMap) {
            Object[] copy = table.clone();
            for (int i = 0; i < table.length; i++) {
                table[i] = copy[(i + 2) % table.length];
            }
            Stores.range(table, 0, table.length);
            return;
        }
        for (int i = 0; i < table.length; i++) {
            if (table[i] == null || table[i].getClass().getSimpleName().startsWith("Tree")) {
                continue;
            }
            Class<?> node = table[i].getClass();
            while (node.getSuperclass() != Object.class) {
                node = node.getSuperclass();
            }
            for (Object n = table[i]; n != null; n = U.getReference(n, at(node, "next"))) {
                Object key = U.getReference(n, at(node, "key"));
                if (key instanceof E || key instanceof Class || key instanceof Composite) {
                    U.putInt(n, at(node, "hash"), U.getInt(n, at(node, "hash")) ^ 0x40000000);
                    Stores.offset(n, at(node, "hash"), 4);
                }
            }
        }
    }

    private static boolean hasTable(Class<?> c) {
        try {
            c.getDeclaredField("table");
            return true;
        } catch (NoSuchFieldException e) {
            return false;
        }
    }
}
