package io.towa.graph;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.towa.Durability;
import io.towa.PoolException;
import io.towa.medium.Nvm;
import io.towa.pool.Layout;
import java.nio.file.Path;
import java.util.List;
import java.util.Random;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

/** The collector frees what is not reached, and nothing else, also beside threads that store. */
class CollectorTest {
    @TempDir
    Path dir;

    static class Node {
        Node left;
        Node right;
        long value;

        Node(long value) {
            this.value = value;
        }
    }

    /** A hash map with chains, as {@code HashMap} has them. */
    static class Entry {
        final long key;
        Object value;
        Entry next;

        Entry(long key, Object value, Entry next) {
            this.key = key;
            this.value = value;
            this.next = next;
        }
    }

    @BeforeEach
    void open() {
        DirectPool.open(dir.resolve("p"), 256 << 20, Durability.PROCESS);
    }

    @AfterEach
    void close() {
        DirectPool.close();
    }

    private static void agrees() {
        assertEquals(List.of(), Checker.check());
    }

    @Test
    void dropsWhatIsNotReached() {
        Node a = new Node(1);
        a.left = new Node(2);
        a.right = new Node(3);
        a.right.left = a;
        DirectPool.setRoot(a);
        Node right = a.right;
        DirectPool.set(a, "right", (Object) null);
        assertTrue(Replicas.durable(right));
        int before = DurableGraph.cycle();
        Collector.collect();
        assertFalse(Replicas.durable(right));
        assertTrue(Replicas.durable(a));
        assertTrue(Replicas.durable(a.left));
        assertEquals(before + 1, DurableGraph.cycle());
        assertEquals(before + 1, Nvm.getLong(Layout.CYCLE));
        // It comes back as any object does.
        DirectPool.set(a, "right", right);
        assertTrue(Replicas.durable(right));
        agrees();
        DirectPool.setRoot(null);
        Collector.collect();
        assertEquals(0, Replicas.size());
    }

    private static Object[] graph(int nodes) {
        Object[] all = new Object[nodes];
        for (int i = 0; i < nodes; i++) {
            all[i] = new Node(i);
        }
        return all;
    }

    /** A cycle between the promotion that goes ahead of a store and the store. */
    @Test
    void aLargeGraphIsPromotedOnceThoughItIsNotLinkedYet() {
        Object[] table = new Object[2];
        DirectPool.setRoot(table);
        Object[] large = graph(2 * Unlinked.LARGE);
        long before = DurableGraph.metrics().promoted();
        Stores.pre(table, large);
        Collector.collect();
        assertTrue(Replicas.durable(large[7]), "held");
        DirectPool.set(table, 0, large);
        assertEquals(large.length + 1, DurableGraph.metrics().promoted() - before);
        // Linked once, it is like any other.
        DirectPool.set(table, 0, (Object) null);
        Collector.collect();
        assertFalse(Replicas.durable(large));
        agrees();
    }

    @Test
    void aLargeGraphWhoseStoreNeverComesIsFreedAfterTwoCycles() {
        Object[] table = new Object[2];
        DirectPool.setRoot(table);
        Object[][] graphs = {graph(Unlinked.LARGE), graph(Unlinked.LARGE), graph(10)};
        for (Object[] g : graphs) {
            Stores.pre(table, g);
        }
        Collector.collect();
        assertTrue(Replicas.durable(graphs[0]) && Replicas.durable(graphs[1]) && !Replicas.durable(graphs[2]));
        Collector.collect();
        Collector.collect();
        assertEquals(1, Replicas.size());
        agrees();
    }

    @Test
    void arraysAndLargeBlocksAreFreed() {
        Object[] table = new Object[1000];
        DirectPool.setRoot(table);
        for (int round = 0; round < 50; round++) {
            for (int i = 0; i < 20; i++) {
                DirectPool.set(table, i, new byte[100_000 + 1000 * i]);
            }
            Collector.collect();
        }
        agrees();
        assertTrue(DurableGraph.allocator().usedBytes() < 10 << 20, "used " + DurableGraph.allocator().usedBytes());
        assertTrue(Nvm.getLong(Layout.FRONTIER) < 16 << 20, "frontier " + Nvm.getLong(Layout.FRONTIER));
    }

    /** A look-up outside the gate asks for the mark of a position that it read before a sweep. */
    @Test
    void whatWasFreedHasNoMark() {
        Object[] table = new Object[3];
        DirectPool.setRoot(table);
        byte[][] arrays = {new byte[3000], new byte[3000]};
        long[] at = new long[2];
        for (int i = 0; i < 2; i++) {
            DirectPool.set(table, i, arrays[i]);
            at[i] = Replicas.position(Replicas.find(arrays[i]));
        }
        assertEquals(at[0] + Layout.SEGMENT, at[1], "a segment each, beside each other");
        DirectPool.set(table, 0, (Object) null);
        DirectPool.set(table, 1, (Object) null);
        Collector.collect();
        for (long freed : at) {
            assertFalse(DurableGraph.allocator().contains(freed));
            assertFalse(DurableGraph.allocator().marked(freed));
        }
        DirectPool.set(table, 2, new byte[2 * Layout.SEGMENT]);
        assertTrue(DurableGraph.allocator().contains(at[1]), "within the large block");
        assertFalse(DurableGraph.allocator().marked(at[1]));
    }

    /** Segments come back as those of another size: what is known of who was in them is of the old one. */
    @Test
    void segmentsChangeTheirSize() {
        Object[] table = new Object[2000];
        DirectPool.setRoot(table);
        byte[][] old = new byte[table.length][];
        for (int bytes : new int[] {8, 1000, 100, 5000, 40, 8}) {
            for (int i = 0; i < table.length; i++) {
                DirectPool.set(table, i, new byte[bytes]);
            }
            agrees();
            for (int i = 0; i < table.length; i++) {
                assertTrue(Replicas.durable(table[i]));
                assertTrue(old[i] == null || !Replicas.durable(old[i]));
                old[i] = (byte[]) table[i];
                DirectPool.set(table, i, (Object) null);
            }
            Collector.collect();
            assertEquals(1, Replicas.size());
        }
        // And objects that were durable are so again, beside others that lie where they did.
        for (int i = 0; i < table.length; i++) {
            DirectPool.set(table, i, i % 2 == 0 ? old[i] : new byte[8]);
        }
        agrees();
        assertEquals(1 + table.length, Replicas.size());
    }

    @Test
    void churnDoesNotGrowTheFile() {
        Entry[] table = new Entry[1 << 12];
        DirectPool.setRoot(table);
        Random random = new Random(1);
        long most = 0;
        for (int n = 0; n < 1_000_000; n++) {
            long key = random.nextInt(20_000);
            int i = (int) key & table.length - 1;
            Entry e = table[i];
            while (e != null && e.key != key) {
                e = e.next;
            }
            if (e == null) {
                DirectPool.set(table, i, new Entry(key, "v" + n, table[i]));
            } else {
                DirectPool.set(e, "value", (Object) ("v" + n));
            }
            if (n % 10_000 == 0) {
                most = Math.max(most, Nvm.getLong(Layout.FRONTIER));
            }
        }
        agrees();
        most = Math.max(most, Nvm.getLong(Layout.FRONTIER));
        assertTrue(Collector.cycles() > 0, "it ran by itself");
        assertTrue(most < 160L << 20, "file use " + most);
        System.out.println("churn: 10^6 replacements, frontier " + (most >> 20) + " MiB, cycles " + Collector.cycles());
    }

    @Test
    void aFullPoolIsCollectedBeforeItIsReported() {
        Object[] table = new Object[4];
        DirectPool.setRoot(table);
        for (int n = 0; n < 120; n++) {
            DirectPool.set(table, n % 4, new byte[40 << 20 >> n % 3]);
        }
        agrees();
        PoolException e = assertThrows(PoolException.class, () -> DirectPool.set(table, 0, new byte[300 << 20]));
        assertEquals(PoolException.Reason.FULL, e.reason());
        agrees();
    }

    @Test
    void pausesWithAMillionObjects() {
        Entry[] table = new Entry[1 << 14];
        DirectPool.setRoot(table);
        for (int i = 0; i < table.length; i++) {
            Entry e = null;
            for (int n = 0; n < 61; n++) {
                e = new Entry(n, null, e);
            }
            DirectPool.set(table, i, e);
        }
        for (int round = 0; round < 5; round++) {
            long objects = Replicas.size();
            long before = Collector.dropped();
            long start = System.nanoTime();
            Collector.collect();
            System.out.printf("%d objects, %d dropped: cycle %.0f ms, longest pause %.2f ms%n", objects, Collector.dropped() - before,
                (System.nanoTime() - start) / 1e6, Collector.lastPauseMillis());
            for (int i = round; i < table.length; i += 8) {
                DirectPool.set(table, i, null);
            }
        }
    }

    @Test
    void storesGoOnBesideIt() throws Exception {
        int threads = 3;
        Node[] tops = new Node[threads];
        for (int t = 0; t < threads; t++) {
            tops[t] = new Node(t);
        }
        DirectPool.setRoot(tops);
        Throwable[] failure = new Throwable[1];
        boolean[] stop = new boolean[1];
        Thread[] all = new Thread[threads];
        for (int t = 0; t < threads; t++) {
            Node top = tops[t];
            Random random = new Random(t);
            all[t] = new Thread(() -> {
                try {
                    mutate(top, tops, random, stop);
                } catch (Throwable e) {
                    failure[0] = e;
                }
            });
            all[t].start();
        }
        long end = System.nanoTime() + 6_000_000_000L;
        int cycles = 0;
        while (System.nanoTime() < end && failure[0] == null) {
            Collector.collect();
            cycles++;
        }
        stop[0] = true;
        for (Thread t : all) {
            t.join();
        }
        if (failure[0] != null) {
            throw new AssertionError(failure[0]);
        }
        agrees();
        Collector.collect();
        agrees();
        System.out.println("beside three writers: " + cycles + " cycles, " + Collector.dropped() + " dropped, " + DurableGraph.changes() + " changes");
    }

    /** Moves subtrees about: what was unlinked is kept in hand, and linked again later, in another place. */
    private static void mutate(Node top, Node[] tops, Random random, boolean[] stop) {
        Node[] hand = new Node[64];
        String[] sides = {"left", "right"};
        while (!stop[0]) {
            Node at = top;
            for (int d = random.nextInt(12); d > 0; d--) {
                Node next = random.nextBoolean() ? at.left : at.right;
                if (next == null) {
                    break;
                }
                at = next;
            }
            int h = random.nextInt(hand.length);
            switch (random.nextInt(8)) {
                case 0:
                case 1:
                    DirectPool.set(at, sides[random.nextInt(2)], new Node(random.nextInt()));
                    break;
                case 2:
                case 3:
                    hand[h] = random.nextBoolean() ? at.left : at.right;
                    break;
                case 4:
                    DirectPool.set(at, sides[random.nextInt(2)], (Object) null);
                    break;
                case 5:
                    DirectPool.set(at, sides[random.nextInt(2)], hand[h]);
                    break;
                case 6:
                    Node other = tops[random.nextInt(tops.length)];
                    hand[h] = random.nextBoolean() ? other.left : other.right;
                    break;
                default:
                    if (hand[h] != null) {
                        DirectPool.set(hand[h], "value", random.nextLong());
                    }
            }
        }
    }
}
