package towa.weave;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;

import io.towa.DurableRoot;
import io.towa.NotDurableException;
import io.towa.PoolException;
import io.towa.Towa;
import io.towa.TowaOptions;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.IdentityHashMap;
import java.util.List;
import java.util.PriorityQueue;
import java.util.Vector;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.PriorityBlockingQueue;
import org.junit.jupiter.api.AfterAll;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Test;

/** Methods of collections that move elements before they store what they were given: refused, they have moved nothing. */
class RefusedCollectionsTest {
    @DurableRoot
    static List<Object> root;

    /** Comparable, so that heaps take it; and never durable. */
    static final class Refused extends Thread implements Comparable<Object> {
        @Override
        public int compareTo(Object o) {
            return -1;
        }
    }

    private static Path file;

    @BeforeAll
    static void open() throws Exception {
        file = Files.createTempFile(Files.isDirectory(Path.of("/dev/shm")) ? Path.of("/dev/shm") : Path.of(System.getProperty("java.io.tmpdir")), "towa", ".towa");
        Files.delete(file);
        Towa.open(file, TowaOptions.DEFAULT.withCapacity(64 << 20));
        root = new ArrayList<>();
    }

    @AfterAll
    static void close() throws Exception {
        Towa.close();
        Files.delete(file);
    }

    private static <T> T durable(T collection) {
        root.add(collection);
        return collection;
    }

    private static void refused(Object after, String expected, org.junit.jupiter.api.function.Executable call) {
        assertThrows(NotDurableException.class, call);
        assertEquals(expected, after.toString());
        assertEquals(List.of(), Towa.verify());
    }

    @Test
    @SuppressWarnings({"unchecked", "rawtypes"})
    void nothingHasMoved() {
        Refused bad = new Refused();
        List array = durable(new ArrayList<>(List.of(1, 2, 3)));
        refused(array, "[1, 2, 3]", () -> array.add(0, bad));
        refused(array, "[1, 2, 3]", () -> array.addAll(1, List.of(4, bad)));
        Vector vector = durable(new Vector<>(List.of(1, 2, 3)));
        refused(vector, "[1, 2, 3]", () -> vector.add(0, bad));
        refused(vector, "[1, 2, 3]", () -> vector.addAll(1, List.of(4, bad)));
        ArrayDeque deque = durable(new ArrayDeque<>(List.of(1, 2, 3)));
        refused(deque, "[1, 2, 3]", () -> deque.addFirst(bad));
        refused(deque, "[1, 2, 3]", () -> deque.addLast(bad));
        PriorityQueue heap = durable(new PriorityQueue<>(List.of(1, 2, 3, 4)));
        refused(heap, "[1, 2, 3, 4]", () -> heap.add(bad));
        PriorityBlockingQueue blocking = durable(new PriorityBlockingQueue<>(List.of(1, 2, 3, 4)));
        refused(blocking, "[1, 2, 3, 4]", () -> blocking.add(bad));
        IdentityHashMap map = durable(new IdentityHashMap<>());
        refused(map, "{}", () -> map.put("key", bad));
        refused(map, "{}", () -> map.put(bad, "value"));
    }

    /** What reserves a bin for a value that it computes leaves the bin as it was. */
    @Test
    void noBinStaysReserved() {
        ConcurrentHashMap<String, Object> map = durable(new ConcurrentHashMap<>());
        map.put("there", 1);
        for (int i = 0; i < 20; i++) {
            String key = "key " + i;
            refused(map, "{there=1}", () -> map.computeIfAbsent(key, k -> new Refused()));
            refused(map, "{there=1}", () -> map.compute(key, (k, v) -> new Refused()));
            refused(map, "{there=1}", () -> map.merge(key, new Refused(), (v, w) -> w));
            assertEquals(PoolException.Reason.FULL, assertThrows(PoolException.class, () -> map.computeIfAbsent(key, k -> new long[10_000_000])).reason());
            map.put(key, i);
            assertThrows(NotDurableException.class, () -> map.computeIfPresent(key, (k, v) -> new Refused()));
            assertEquals(i, map.remove(key));
        }
    }
}
