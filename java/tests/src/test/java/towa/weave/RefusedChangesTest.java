package towa.weave;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.towa.DurableRoot;
import io.towa.NotDurableException;
import io.towa.Towa;
import io.towa.TowaOptions;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collection;
import java.util.HashMap;
import java.util.Hashtable;
import java.util.IdentityHashMap;
import java.util.LinkedHashMap;
import java.util.LinkedHashSet;
import java.util.LinkedList;
import java.util.List;
import java.util.Map;
import java.util.PriorityQueue;
import java.util.Queue;
import java.util.TreeMap;
import java.util.TreeSet;
import java.util.Vector;
import java.util.concurrent.ArrayBlockingQueue;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ConcurrentLinkedDeque;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.ConcurrentSkipListMap;
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.concurrent.CopyOnWriteArraySet;
import java.util.concurrent.LinkedBlockingDeque;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.PriorityBlockingQueue;
import java.util.function.BiConsumer;
import java.util.function.Supplier;
import org.junit.jupiter.api.AfterAll;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Test;

/** Every way to change a collection, refused for a value that cannot be durable: the collection is as it was, its size is right, and it goes on. */
class RefusedChangesTest {
    @DurableRoot
    static Object root;

    private static Path file;

    @BeforeAll
    static void open() throws Exception {
        file = Files.createTempFile(folder(), "towa", ".towa");
        Files.delete(file);
        Towa.open(file, TowaOptions.DEFAULT.withCapacity(64 << 20));
    }

    private static Path folder() {
        return Path.of(Files.isDirectory(Path.of("/dev/shm")) ? "/dev/shm" : System.getProperty("java.io.tmpdir"));
    }

    @AfterAll
    static void close() throws Exception {
        root = null;
        Towa.close();
        Files.delete(file);
    }

    /** Never durable; comparable, so that sorted collections take it. */
    static final class Bad extends Thread implements Comparable<Object> {
        @Override
        public int compareTo(Object o) {
            return o instanceof Bad ? 0 : -1;
        }

        @Override
        public int hashCode() {
            return 3;
        }
    }

    /** Keys that share bins, and a few wholly. */
    record Key(int n) implements Comparable<Object> {
        @Override
        public int compareTo(Object o) {
            return o instanceof Key ? Integer.compare(n, ((Key) o).n) : 1;
        }

        @Override
        public int hashCode() {
            return n % 16 == 0 ? 3 : n;
        }
    }

    /** @param change what is done with the collection and with something that it is to get */
    private record Way(String name, Supplier<Object> make, BiConsumer<Object, Object> change) {}

    private static final List<Way> WAYS = new ArrayList<>();

    @SuppressWarnings("unchecked")
    private static <T> T cast(Object o) {
        return (T) o;
    }

    /** Of 56 entries eight share a bin, which becomes a tree with the next one; of 160 all. */
    private static void map(String name, Supplier<Map<Object, Object>> empty, String how, BiConsumer<Map<Object, Object>, Object> change) {
        for (int n : new int[] {0, 1, 11, 12, 21, 48, 56, 160}) {
            Supplier<Object> make = () -> {
                Map<Object, Object> m = empty.get();
                for (int i = 0; i < n; i++) {
                    m.put(new Key(n == 160 || n == 56 && i < 8 ? 16 * i : n == 56 ? 1001 + 4 * i : i), i);
                }
                return m;
            };
            WAYS.add(new Way(name + " of " + n + " " + how, make, (m, v) -> change.accept(cast(m), v)));
        }
    }

    private static void maps(String name, Supplier<Map<Object, Object>> empty) {
        map(name, empty, "put", (m, v) -> m.put(new Key(1000), v));
        map(name, empty, "put in a shared bin", (m, v) -> m.put(new Key(16000), v));
        map(name, empty, "put of a key", (m, v) -> m.put(v, "value"));
        map(name, empty, "put over", (m, v) -> m.put(new Key(0), v));
        map(name, empty, "putIfAbsent", (m, v) -> m.putIfAbsent(new Key(1000), v));
        map(name, empty, "computeIfAbsent", (m, v) -> m.computeIfAbsent(new Key(1000), k -> v));
        map(name, empty, "computeIfAbsent in a shared bin", (m, v) -> m.computeIfAbsent(new Key(16000), k -> v));
        map(name, empty, "computeIfAbsent of a key", (m, v) -> m.computeIfAbsent(v, k -> "value"));
        map(name, empty, "compute", (m, v) -> m.compute(new Key(1000), (k, old) -> v));
        map(name, empty, "compute over", (m, v) -> m.compute(new Key(0), (k, old) -> v));
        map(name, empty, "computeIfPresent", (m, v) -> m.computeIfPresent(new Key(0), (k, old) -> v));
        map(name, empty, "merge", (m, v) -> m.merge(new Key(1000), v, (a, b) -> b));
        map(name, empty, "merge over", (m, v) -> m.merge(new Key(0), v, (a, b) -> b));
        map(name, empty, "replace", (m, v) -> m.replace(new Key(0), v));
        map(name, empty, "putAll", (m, v) -> m.putAll(Map.of(new Key(2000), v)));
        map(name, empty, "remove", (m, v) -> m.remove(new Key(0)));
        map(name, empty, "compute away", (m, v) -> m.computeIfPresent(new Key(0), (k, old) -> null));
        map(name, empty, "remove all but a few of a bin", (m, v) -> {
            for (int i = 1; i < 160; i++) {
                m.remove(new Key(16 * i));
            }
        });
    }

    private static void all(String name, Supplier<Collection<Object>> empty) {
        for (int n : new int[] {0, 1, 11, 15, 16, 17}) {
            Supplier<Object> make = () -> {
                Collection<Object> c = empty.get();
                for (int i = 0; i < n; i++) {
                    c.add(new Key(i));
                }
                return c;
            };
            add(name, n, "add", make, (c, v) -> c.add(v));
            add(name, n, "addAll", make, (c, v) -> c.addAll(three(v)));
            add(name, n, "remove", make, (c, v) -> c.remove(new Key(0)));
            Object o = empty.get();
            if (o instanceof List) {
                add(name, n, "add at", make, (c, v) -> ((List<Object>) c).add(n / 2, v));
                add(name, n, "add all at", make, (c, v) -> ((List<Object>) c).addAll(n / 2, three(v)));
                add(name, n, "add all first", make, (c, v) -> ((List<Object>) c).addAll(0, three(v)));
                if (n > 0) {
                    add(name, n, "set", make, (c, v) -> ((List<Object>) c).set(n / 2, v));
                }
            }
            if (o instanceof Queue) {
                add(name, n, "offer", make, (c, v) -> ((Queue<Object>) c).offer(v));
                add(name, n, "poll", make, (c, v) -> ((Queue<Object>) c).poll());
            }
            if (o instanceof java.util.Deque) {
                add(name, n, "addFirst", make, (c, v) -> ((java.util.Deque<Object>) c).addFirst(v));
                add(name, n, "pollLast", make, (c, v) -> ((java.util.Deque<Object>) c).pollLast());
            }
        }
    }

    private static List<Object> three(Object v) {
        return Arrays.asList(new Key(1000), v, new Key(1001));
    }

    private static void add(String name, int n, String how, Supplier<Object> make, BiConsumer<Collection<Object>, Object> change) {
        WAYS.add(new Way(name + " of " + n + " " + how, make, (c, v) -> change.accept(cast(c), v)));
    }

    static {
        maps("HashMap", HashMap::new);
        maps("LinkedHashMap", LinkedHashMap::new);
        maps("TreeMap", TreeMap::new);
        maps("Hashtable", Hashtable::new);
        maps("IdentityHashMap", IdentityHashMap::new);
        maps("ConcurrentHashMap", ConcurrentHashMap::new);
        maps("ConcurrentSkipListMap", ConcurrentSkipListMap::new);
        add("TreeSet", 0, "addAll of a sorted one", TreeSet::new, (c, v) -> c.addAll(new TreeSet<>(three(v))));
        map("TreeMap", TreeMap::new, "putAll of a sorted one",
            (m, v) -> m.putAll(new TreeMap<>(Map.of(new Key(2000), v, new Key(2001), v, new Key(2002), v))));
        map("ConcurrentHashMap", ConcurrentHashMap::new, "putAll of many", (m, v) -> {
            Map<Object, Object> more = new HashMap<>();
            for (int i = 0; i < 100; i++) {
                more.put(new Key(3000 + i), v);
            }
            m.putAll(more);
        });
        map("ConcurrentSkipListMap", ConcurrentSkipListMap::new, "poll", (m, v) -> ((ConcurrentSkipListMap<?, ?>) m).pollFirstEntry());
        all("ArrayList", ArrayList::new);
        all("Vector", Vector::new);
        all("LinkedList", LinkedList::new);
        all("ArrayDeque", ArrayDeque::new);
        all("PriorityQueue", PriorityQueue::new);
        all("PriorityBlockingQueue", PriorityBlockingQueue::new);
        all("LinkedBlockingQueue", LinkedBlockingQueue::new);
        all("LinkedBlockingDeque", LinkedBlockingDeque::new);
        all("ArrayBlockingQueue", () -> new ArrayBlockingQueue<>(40));
        all("ConcurrentLinkedQueue", ConcurrentLinkedQueue::new);
        all("ConcurrentLinkedDeque", ConcurrentLinkedDeque::new);
        all("CopyOnWriteArrayList", CopyOnWriteArrayList::new);
        all("CopyOnWriteArraySet", CopyOnWriteArraySet::new);
        all("LinkedHashSet", LinkedHashSet::new);
        all("TreeSet", TreeSet::new);
    }

    /** What is in it, in its order. */
    private static List<Object> content(Object o) {
        List<Object> all = new ArrayList<>();
        if (o instanceof Map) {
            for (Map.Entry<?, ?> e : ((Map<?, ?>) o).entrySet()) {
                all.add(List.of(e.getKey(), e.getValue()));
            }
        } else {
            for (Object e : (Collection<?>) o) {
                all.add(e);
            }
        }
        return all;
    }

    private static boolean isSorted(Object o) {
        return !(o instanceof PriorityQueue) && !(o instanceof PriorityBlockingQueue) && !(o instanceof HashMap)
            && !(o instanceof Hashtable) && !(o instanceof ConcurrentHashMap) && !(o instanceof IdentityHashMap)
            || o instanceof LinkedHashMap;
    }

    private static Object comparable(Object o) {
        return isSorted(o) ? content(o) : Map.of("size", content(o).size(), "entries", new java.util.HashSet<>(content(o)));
    }

    /** It counts right, each entry is found, and it goes on: something comes, and all goes. */
    private static void sound(String way, Object o) {
        List<Object> all = content(o);
        if (o instanceof Map) {
            Map<Object, Object> m = cast(o);
            assertEquals(all.size(), m.size(), way);
            assertEquals(all.isEmpty(), m.isEmpty(), way);
            for (Object e : new ArrayList<>(m.entrySet())) {
                Map.Entry<?, ?> entry = (Map.Entry<?, ?>) e;
                assertEquals(entry.getValue(), m.get(entry.getKey()), way);
            }
        } else {
            assertEquals(all.size(), ((Collection<?>) o).size(), way);
            assertEquals(all.isEmpty(), ((Collection<?>) o).isEmpty(), way);
            assertEquals(all.size(), ((Collection<?>) o).toArray().length, way);
        }
        assertEquals(List.of(), Towa.verify(), way);
    }

    private static void goesOn(String way, Object o) throws Exception {
        int n = content(o).size();
        if (o instanceof Map) {
            Map<Object, Object> m = cast(o);
            List<Object> keys = new ArrayList<>(m.keySet());
            for (int i = 0; i < 64; i++) {
                Key k = new Key(5000 + i);
                keys.add(k);
                m.put(k, i);
            }
            for (Object k : List.copyOf(keys)) {
                if (k instanceof Key && ((Key) k).n == 16000) {
                    m.remove(k);
                    keys.remove(k);
                }
            }
            sound(way + ", filled", o);
            for (Object k : keys) {
                assertTrue(m.remove(k) != null, way);
            }
            assertTrue(m.isEmpty() && content(m).isEmpty(), way + ", emptied: " + m);
        } else {
            Collection<Object> c = cast(o);
            Thread other = Thread.ofPlatform().daemon().start(() -> c.add(new Key(6000)));
            other.join(20_000);
            assertTrue(!other.isAlive(), way + ": somebody holds its lock");
            assertEquals(n + 1, content(c).size(), way);
            sound(way + ", filled", o);
            c.removeAll(content(c));
            assertTrue(c.isEmpty(), way);
        }
        sound(way + ", emptied", o);
    }

    private interface Check {
        void run(Way way) throws Exception;
    }

    /** All that are wrong, not the first. */
    private static void each(Check check) {
        List<String> wrong = new ArrayList<>();
        for (Way way : WAYS) {
            try {
                check.run(way);
            } catch (Exception | AssertionError e) {
                StackTraceElement at = e.getStackTrace().length == 0 ? null : e.getStackTrace()[0];
                wrong.add(e instanceof AssertionError ? e.getMessage() : way.name + ": " + e + " at " + at);
            }
        }
        List<String> some = wrong.subList(0, Math.min(60, wrong.size()));
        assertTrue(wrong.isEmpty(), wrong.size() + " of " + WAYS.size() + ":\n" + String.join("\n", some));
    }

    @Test
    void refused() {
        each(way -> {
            Object o = way.make.get();
            root = o;
            Object before = comparable(o);
            boolean refused = false;
            try {
                way.change.accept(o, new Bad());
            } catch (NotDurableException e) {
                refused = true;
            }
            // Those of several entries may have come to one of them.
            if (refused && !way.name.contains("addAll") && !way.name.contains("putAll")) {
                assertEquals(before, comparable(o), way.name);
            }
            sound(way.name, o);
            goesOn(way.name, o);
        });
    }
}
