package io.towa.graph;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.towa.OnDemand;
import io.towa.medium.Nvm;
import io.towa.pool.Layout;
import java.io.RandomAccessFile;
import java.nio.file.Path;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.BitSet;
import java.util.Collection;
import java.util.EnumMap;
import java.util.EnumSet;
import java.util.HashMap;
import java.util.Hashtable;
import java.util.IdentityHashMap;
import java.util.LinkedHashMap;
import java.util.LinkedHashSet;
import java.util.LinkedList;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ConcurrentSkipListMap;
import java.util.concurrent.atomic.LongAdder;
import jdk.internal.misc.Unsafe;
import org.junit.jupiter.api.Test;

/** Collections that a crash caught between an entry and its count: what they say of their size afterwards is what is in them. */
class CountsTest {
    private static final Unsafe U = Unsafe.getUnsafe();

    private static long at(Class<?> c, String field) {
        return U.objectFieldOffset(c, field);
    }

    private static Class<?> type(String name) throws Exception {
        return Class.forName("java.util." + name);
    }

    @SuppressWarnings("unchecked")
    private static <T> T cast(Object o) {
        return (T) o;
    }

    /** What a crash leaves: the word that a clean close sets. */
    private static Path crashed(Path p) throws Exception {
        try (RandomAccessFile f = new RandomAccessFile(p.toFile(), "rw")) {
            f.seek(Layout.COUNTS);
            assertEquals(Long.reverseBytes(Layout.NONE), f.readLong());
            f.seek(Layout.COUNTS);
            f.writeLong(Long.reverseBytes(Layout.STALE));
        }
        return p;
    }

    private static Object afterCrash(Object o) throws Exception {
        Path p = crashed(SavedPool.save(o));
        SavedPool.load(p);
        // What was mended is in the pool: this opening looks at nothing.
        return SavedPool.load(p);
    }

    /** A collection or a map of {@code n} entries, and where its count is. */
    private record Subject(Object o, int n, Object holder, long offset, boolean wide) {
        Subject(Object o, int n, Class<?> c, String field) {
            this(o, n, o, at(c, field), false);
        }

        void add(long by) {
            if (wide) {
                U.putLong(holder, offset, U.getLong(holder, offset) + by);
            } else {
                U.putInt(holder, offset, U.getInt(holder, offset) + (int) by);
            }
        }
    }

    private enum Few { A, B, C }

    private enum Many {
        M00, M01, M02, M03, M04, M05, M06, M07, M08, M09, M10, M11, M12, M13, M14, M15,
        M16, M17, M18, M19, M20, M21, M22, M23, M24, M25, M26, M27, M28, M29,
        M30, M31, M32, M33, M34, M35, M36, M37, M38, M39, M40, M41, M42, M43, M44, M45,
        M46, M47, M48, M49, M50, M51, M52, M53, M54, M55, M56, M57, M58, M59,
        M60, M61, M62, M63, M64, M65
    }

    private static <M extends Map<Object, Object>> M filled(M m, int n) {
        for (int i = 0; i < n; i++) {
            m.put("k" + i, i);
        }
        return m;
    }

    /** Of each kind that has a count beside its entries. */
    private static List<Subject> subjects(int n) throws Exception {
        List<Subject> all = new ArrayList<>();
        Object chm = filled(new ConcurrentHashMap<>(), n);
        all.add(new Subject(chm, n, chm, at(ConcurrentHashMap.class, "baseCount"), true));
        all.add(new Subject(filled(new HashMap<>(), n), n, HashMap.class, "size"));
        all.add(new Subject(filled(new LinkedHashMap<>(), n), n, HashMap.class, "size"));
        LinkedHashSet<Object> set = new LinkedHashSet<>(filled(new HashMap<>(), n).keySet());
        all.add(new Subject(set, n, U.getReference(set, at(java.util.HashSet.class, "map")), at(HashMap.class, "size"), false));
        all.add(new Subject(filled(new TreeMap<>(), n), n, TreeMap.class, "size"));
        all.add(new Subject(filled(new Hashtable<>(), n), n, Hashtable.class, "count"));
        all.add(new Subject(filled(new IdentityHashMap<>(), n), n, IdentityHashMap.class, "size"));
        Object skip = filled(new ConcurrentSkipListMap<>(), n + 1);
        ((Map<?, ?>) skip).remove("k" + n);
        Object adder = U.getReference(skip, at(ConcurrentSkipListMap.class, "adder"));
        all.add(new Subject(skip, n, adder, at(LongAdder.class.getSuperclass(), "base"), true));
        all.add(new Subject(new LinkedList<>(filled(new HashMap<>(), n).keySet()), n, LinkedList.class, "size"));
        EnumMap<Few, Object> few = new EnumMap<>(Few.class);
        EnumSet<Many> many = EnumSet.noneOf(Many.class);
        for (int i = 0; i < Math.min(n, 3); i++) {
            few.put(Few.values()[i], i);
        }
        for (int i = 0; i < Math.min(n, 66); i++) {
            many.add(Many.values()[i]);
        }
        all.add(new Subject(few, Math.min(n, 3), EnumMap.class, "size"));
        all.add(new Subject(many, Math.min(n, 66), many.getClass(), "size"));
        return all;
    }

    private static void check(String what, int n, Object o) {
        if (o instanceof Map) {
            Map<?, ?> m = (Map<?, ?>) o;
            assertEquals(n, m.size(), what);
            assertEquals(n == 0, m.isEmpty(), what);
            assertEquals(n, m.keySet().toArray().length, what);
            assertEquals(n, new ArrayList<>(m.values()).size(), what);
        } else {
            Collection<?> c = (Collection<?>) o;
            assertEquals(n, c.size(), what);
            assertEquals(n == 0, c.isEmpty(), what);
            assertEquals(n, c.toArray().length, what);
        }
    }

    @Test
    void countsAreThoseOfTheEntries() throws Exception {
        for (int n : new int[] {0, 1, 2, 5, 40, 300}) {
            for (int by : new int[] {-3, -1, 1, 2}) {
                List<Subject> all = subjects(n);
                Object[] objects = new Object[all.size()];
                for (int i = 0; i < objects.length; i++) {
                    all.get(i).add(by);
                    objects[i] = all.get(i).o;
                }
                Object[] back = cast(afterCrash(objects));
                for (int i = 0; i < objects.length; i++) {
                    check(back[i].getClass() + " of " + n + ", " + by, all.get(i).n, back[i]);
                }
            }
        }
    }

    /** A pool that was closed is not looked at: that would cost. */
    @Test
    void notAfterACleanClose() throws Exception {
        for (Subject s : subjects(5)) {
            s.add(1);
            Path p = SavedPool.save(s.o);
            Object back = SavedPool.load(p);
            int size = back instanceof Map ? ((Map<?, ?>) back).size() : ((Collection<?>) back).size();
            assertEquals(s.n + 1, size, back.getClass().toString());
        }
    }

    /** Counts that lie in cells, as threads that contend leave them. */
    @Test
    void cells() throws Exception {
        for (int by : new int[] {0, 1}) {
            ConcurrentHashMap<Object, Object> m = filled(new ConcurrentHashMap<>(), 40);
            Class<?> cell = type("concurrent.ConcurrentHashMap$CounterCell");
            Object[] cells = (Object[]) java.lang.reflect.Array.newInstance(cell, 4);
            cells[1] = U.allocateInstance(cell);
            U.putLong(cells[1], at(cell, "value"), 7 + by);
            U.putReference(m, at(ConcurrentHashMap.class, "counterCells"), cells);
            U.putLong(m, at(ConcurrentHashMap.class, "baseCount"), 33);
            Map<Object, Object> back = cast(afterCrash(m));
            check("cells", 40, back);
            assertEquals(by == 0, U.getReference(back, at(ConcurrentHashMap.class, "counterCells")) != null);
        }
    }

    /** Keys that collide, so that the bins are trees. */
    record Key(int n) implements Comparable<Key> {
        @Override
        public int hashCode() {
            return n / 20;
        }

        @Override
        public int compareTo(Key k) {
            return Integer.compare(n, k.n);
        }
    }

    @Test
    void bins() throws Exception {
        for (Map<Object, Object> m : List.<Map<Object, Object>>of(new ConcurrentHashMap<>(), new HashMap<>(), new LinkedHashMap<>())) {
            for (int i = 0; i < 200; i++) {
                m.put(new Key(i), i);
            }
            if (m instanceof ConcurrentHashMap) {
                U.putLong(m, at(ConcurrentHashMap.class, "baseCount"), 199);
            } else {
                U.putInt(m, at(HashMap.class, "size"), 201);
            }
            check("bins", 200, afterCrash(m));
        }
    }

    /** The first entry of a skip list came, and not what counts. */
    @Test
    void aSkipListWithoutACounter() throws Exception {
        ConcurrentSkipListMap<Object, Object> m = filled(new ConcurrentSkipListMap<>(), 1);
        U.putReference(m, at(ConcurrentSkipListMap.class, "adder"), null);
        Map<Object, Object> back = cast(afterCrash(m));
        check("skip list", 1, back);
        back.put("more", 1);
        check("skip list", 2, back);
    }

    /** A crash in putFirst: later entries go to the end, as ever. */
    @Test
    void theModeOfALinkedMap() throws Exception {
        LinkedHashMap<Object, Object> m = filled(new LinkedHashMap<>(), 3);
        U.putInt(m, at(LinkedHashMap.class, "putMode"), 1);
        Map<Object, Object> back = cast(afterCrash(m));
        back.put("last", 1);
        assertEquals("last", new ArrayList<>(back.keySet()).get(3));
    }

    /** An entry of a LinkedHashMap is linked before it is in the table, and taken out of the table before it is unlinked, link by link. */
    @Test
    void linkedMaps() throws Exception {
        Class<?> entry = type("LinkedHashMap$Entry");
        for (int state = 0; state < 7; state++) {
            LinkedHashMap<Object, Object> m = filled(new LinkedHashMap<>(), 5);
            List<Object> e = new ArrayList<>(m.entrySet());
            List<Object> expected = new ArrayList<>(m.keySet());
            Object[] table = cast(U.getReference(m, at(HashMap.class, "table")));
            if (state < 3) {
                // put: linked, not in the table
                Object x = U.allocateInstance(entry);
                U.putReference(x, at(type("HashMap$Node"), "key"), "new");
                U.putReference(m, at(LinkedHashMap.class, "tail"), x);
                U.putReference(x, at(entry, "before"), state > 0 ? e.get(4) : null);
                U.putReference(e.get(4), at(entry, "after"), state > 1 ? x : null);
            } else {
                // remove of the third: not in the table
                for (int i = 0; i < table.length; i++) {
                    table[i] = table[i] == e.get(2) ? null : table[i];
                }
                expected.remove(2);
                U.putReference(e.get(2), at(entry, "before"), state > 3 ? null : e.get(1));
                U.putReference(e.get(2), at(entry, "after"), state > 4 ? null : e.get(3));
                U.putReference(e.get(1), at(entry, "after"), state > 5 ? e.get(3) : e.get(2));
            }
            Map<Object, Object> back = cast(afterCrash(m));
            check("state " + state, expected.size(), back);
            assertEquals(expected, new ArrayList<>(back.keySet()), "state " + state);
            for (Object k : expected) {
                assertTrue(back.containsKey(k));
            }
            back.put("z", 1);
            back.remove("k0");
            assertEquals("z", new ArrayList<>(back.keySet()).get(expected.size() - 1));
            check("state " + state, expected.size(), back);
        }
    }

    /** A list that a crash left between two links. Removals are sections; older pools may have been left within them. */
    @Test
    void linkedLists() throws Exception {
        Class<?> node = type("LinkedList$Node");
        long item = at(node, "item");
        long next = at(node, "next");
        long prev = at(node, "prev");
        long firstAt = at(LinkedList.class, "first");
        long lastAt = at(LinkedList.class, "last");
        for (int n = 0; n < 5; n++) {
            for (int state = 0; state < 12; state++) {
                LinkedList<Object> q = new LinkedList<>();
                for (int i = 0; i < n; i++) {
                    q.add("e" + i);
                }
                List<Object> expected = new ArrayList<>(q);
                Object first = U.getReference(q, firstAt);
                Object last = U.getReference(q, lastAt);
                Object second = n > 1 ? U.getReference(first, next) : null;
                Object x = U.allocateInstance(node);
                U.putReference(x, item, "new");
                if (state == 0) {
                    // addLast
                    U.putReference(x, prev, last);
                    U.putReference(q, lastAt, x);
                    expected.add("new");
                } else if (state == 1) {
                    // addFirst
                    U.putReference(x, next, first);
                    U.putReference(q, firstAt, x);
                    expected.add(0, "new");
                } else if (state == 2 && n > 1) {
                    // add within
                    U.putReference(x, prev, first);
                    U.putReference(x, next, second);
                    U.putReference(second, prev, x);
                } else if (state < 5 && n > 1) {
                    // removeFirst
                    U.putReference(first, item, null);
                    U.putReference(first, next, null);
                    U.putReference(q, firstAt, state == 3 ? first : second);
                    expected.remove(0);
                } else if (state < 7 && n > 1) {
                    // removeLast
                    Object before = U.getReference(last, prev);
                    U.putReference(last, item, null);
                    U.putReference(last, prev, null);
                    U.putReference(q, lastAt, state == 5 ? last : before);
                    expected.remove(n - 1);
                } else if (state == 7 && n > 2) {
                    // remove within: the second
                    U.putReference(first, next, U.getReference(second, next));
                    U.putReference(second, prev, null);
                    expected.remove(1);
                } else if (state == 8 || state == 9) {
                    // addAll of three behind the first, or in front of it
                    Object at = state == 8 ? first : null;
                    for (int i = 0; i < 3; i++) {
                        Object added = U.allocateInstance(node);
                        U.putReference(added, item, "new" + i);
                        U.putReference(added, prev, at);
                        if (at == null) {
                            U.putReference(q, firstAt, added);
                        } else {
                            U.putReference(at, next, added);
                        }
                        at = added;
                    }
                    if (n == 0 || state == 8 && n == 1) {
                        expected.addAll(List.of("new0", "new1", "new2"));
                    }
                } else if (state > 9 && n > 1) {
                    // clear, in its midst or at its end
                    Object e = first;
                    for (int i = 0; i < (state == 10 ? n - 1 : n); i++) {
                        Object following = U.getReference(e, next);
                        U.putReference(e, item, null);
                        U.putReference(e, next, null);
                        U.putReference(e, prev, null);
                        e = following;
                        expected.remove(0);
                    }
                }
                String what = n + " elements, state " + state;
                if (state == 8 && n == 0) {
                    continue;
                }
                List<Object> back = cast(afterCrash(q));
                check(what, expected.size(), back);
                assertEquals(expected, back, what);
                assertEquals(expected.reversed(), new ArrayList<>(back.reversed()), what);
                back.add("more");
                back.remove("more");
                check(what, expected.size(), back);
            }
        }
    }

    /** Either end of an ArrayDeque is stored beside an element. */
    @Test
    void arrayDeques() throws Exception {
        Class<?> c = ArrayDeque.class;
        List<Object> all = new ArrayList<>();
        List<List<Object>> expectations = new ArrayList<>();
        for (int start = 0; start < 18; start++) {
            for (int n = 0; n <= 16; n++) {
                for (int state = 0; state < 9; state++) {
                    ArrayDeque<Object> q = new ArrayDeque<>(16);
                    for (int i = 0; i < start; i++) {
                        q.add("x");
                        q.remove();
                    }
                    for (int i = 0; i < n; i++) {
                        q.add("e" + i);
                    }
                    List<Object> expected = new ArrayList<>(q);
                    Object[] items = cast(U.getReference(q, at(c, "elements")));
                    int head = U.getInt(q, at(c, "head"));
                    int tail = U.getInt(q, at(c, "tail"));
                    if (state == 1) {
                        items[tail] = "new";
                    } else if (state == 2) {
                        U.putInt(q, at(c, "head"), head == 0 ? items.length - 1 : head - 1);
                    } else if (state == 3 && n > 0) {
                        items[head] = null;
                        expected.remove(0);
                    } else if (state == 4) {
                        // full, and about to grow
                        items[tail] = "new";
                        U.putInt(q, at(c, "tail"), tail + 1 == items.length ? 0 : tail + 1);
                        expected.add("new");
                    } else if (state == 5 && n > 0) {
                        // pollLast
                        U.putInt(q, at(c, "tail"), tail == 0 ? items.length - 1 : tail - 1);
                        expected.remove(n - 1);
                    } else if (state == 6) {
                        // clear, in its midst
                        for (int i = 0; i < n / 2; i++) {
                            items[(head + i) % items.length] = null;
                            expected.remove(0);
                        }
                    } else if (state == 7) {
                        // grown, and the first elements not moved yet
                        Object[] more = new Object[40];
                        System.arraycopy(items, 0, more, 0, items.length);
                        U.putReference(q, at(c, "elements"), more);
                    } else if (state == 8 && n == 16) {
                        // the same, of one that is full
                        items[tail] = "new";
                        Object[] more = new Object[36];
                        System.arraycopy(items, 0, more, 0, items.length);
                        U.putReference(q, at(c, "elements"), more);
                        U.putInt(q, at(c, "tail"), head);
                        expected.add("new");
                    }
                    all.add(q);
                    expectations.add(expected);
                }
            }
        }
        // One pool for all of them.
        Object[] back = cast(afterCrash(all.toArray()));
        for (int i = 0; i < back.length; i++) {
            check(cast(back[i]), expectations.get(i), "deque " + i);
        }
    }

    private static void check(ArrayDeque<Object> back, List<Object> expected, String what) {
        check(what, expected.size(), back);
        assertEquals(expected, new ArrayList<>(back), what);
        back.addFirst("f");
        back.addLast("l");
        assertEquals("f", back.pollFirst());
        assertEquals("l", back.pollLast());
        for (Object e : expected) {
            assertEquals(e, back.pollFirst(), what);
        }
        check(what, 0, back);
    }

    @Test
    void bitSets() throws Exception {
        BitSet empty = new BitSet(200);
        U.putInt(empty, at(BitSet.class, "wordsInUse"), 2);
        BitSet one = new BitSet(200);
        one.set(3);
        U.putInt(one, at(BitSet.class, "wordsInUse"), 3);
        // clear: the words go from the last one in use on
        BitSet cleared = new BitSet(200);
        cleared.set(150);
        U.putInt(cleared, at(BitSet.class, "wordsInUse"), 2);
        // Threads that changed one without a lock: more words in use than there are.
        BitSet raced = new BitSet(64);
        U.putInt(raced, at(BitSet.class, "wordsInUse"), 3);
        Object[] back = cast(afterCrash(new Object[] {empty, one, cleared, raced}));
        ((BitSet) back[2]).set(190);
        assertEquals(1, ((BitSet) back[2]).cardinality());
        assertTrue(((BitSet) back[0]).isEmpty());
        assertEquals(4, ((BitSet) back[1]).length());
    }

    /** Threads that changed a map without a lock: it is as useless as before, and the pool opens. */
    @Test
    void circlesAreLeft() throws Exception {
        HashMap<Object, Object> m = new HashMap<>(Map.of("k", 1));
        TreeMap<Object, Object> t = new TreeMap<>(Map.of("k", 1));
        LinkedList<Object> q = new LinkedList<>(List.of("e", "f"));
        Object node = m.entrySet().iterator().next();
        U.putReference(node, at(type("HashMap$Node"), "next"), node);
        Object entry = t.firstEntry() == null ? null : U.getReference(t, at(TreeMap.class, "root"));
        U.putReference(entry, at(type("TreeMap$Entry"), "left"), entry);
        U.putReference(entry, at(type("TreeMap$Entry"), "right"), entry);
        Object first = U.getReference(q, at(LinkedList.class, "first"));
        U.putReference(first, at(type("LinkedList$Node"), "next"), first);
        U.putInt(m, at(HashMap.class, "size"), 7);
        U.putInt(t, at(TreeMap.class, "size"), 7);
        U.putInt(q, at(LinkedList.class, "size"), 7);
        Object[] back = cast(afterCrash(new Object[] {m, t, q}));
        assertEquals(7, ((Map<?, ?>) back[0]).size());
        assertEquals(7, ((Map<?, ?>) back[1]).size());
        assertEquals(7, ((List<?>) back[2]).size());
    }

    /** What a crash left behind an OnDemand may be loaded many runs later. */
    @Test
    void behindAnOnDemand() throws Exception {
        ConcurrentHashMap<Object, Object> m = filled(new ConcurrentHashMap<>(), 5);
        ConcurrentHashMap<Object, Object> n = filled(new ConcurrentHashMap<>(), 5);
        U.putLong(m, at(ConcurrentHashMap.class, "baseCount"), 6);
        U.putLong(n, at(ConcurrentHashMap.class, "baseCount"), 6);
        Path p = crashed(SavedPool.save(new Object[] {new OnDemand<>(m), new OnDemand<>(n)}));
        SavedPool.load(p);
        for (int run = 0; run < 3; run++) {
            SavedPool.open(p);
            try {
                assertTrue(Recovery.sizesMayDiffer());
                OnDemand<Map<Object, Object>> first = cast(((Object[]) SavedPool.root)[0]);
                if (run > 0) {
                    check("loaded in run " + run, 5, first.get());
                }
                if (run == 2) {
                    OnDemand<Map<Object, Object>> second = cast(((Object[]) SavedPool.root)[1]);
                    check("loaded at last", 5, second.get());
                }
                assertEquals(List.of(), Checker.check());
            } finally {
                DurableGraph.close();
            }
        }
        SavedPool.open(p);
        try {
            // Everything had come by when it was closed.
            OnDemand<Map<Object, Object>> first = cast(((Object[]) SavedPool.root)[0]);
            U.putLong(first.get(), at(ConcurrentHashMap.class, "baseCount"), 6);
            Stores.offset(first.get(), at(ConcurrentHashMap.class, "baseCount"), 8);
            assertEquals(Layout.STALE, Nvm.getLong(Layout.COUNTS));
        } finally {
            DurableGraph.close();
        }
        SavedPool.open(p);
        try {
            OnDemand<Map<Object, Object>> first = cast(((Object[]) SavedPool.root)[0]);
            assertEquals(6, first.get().size());
        } finally {
            DurableGraph.close();
        }
    }
}
