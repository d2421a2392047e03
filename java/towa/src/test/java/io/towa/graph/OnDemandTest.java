package io.towa.graph;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNotSame;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertSame;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.towa.Durability;
import io.towa.NotDurableException;
import io.towa.OnDemand;
import io.towa.TowaException;
import io.towa.TowaOptions;
import io.towa.medium.Nvm;
import io.towa.pool.Layout;
import java.lang.ref.WeakReference;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.atomic.AtomicReference;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;

/** What lies behind an OnDemand is brought back when it is asked for, whole, once, and not before; and nothing of it is lost until then. */
class OnDemandTest {
    private static final int PARTS = 20;
    private static final int ENTRIES = 50;

    @TempDir
    Path dir;

    static class Item {
        Object other;
        long number;

        Item(long number) {
            this.number = number;
        }
    }

    @AfterEach
    void close() {
        DirectPool.close();
    }

    private void open() {
        open(Durability.PROCESS);
    }

    private void open(Durability durability) {
        DirectPool.open(dir.resolve("p"), 256 << 20, durability);
    }

    /** Closes, and opens again; the root. */
    private Object[] again() {
        return again(Durability.PROCESS);
    }

    private Object[] again(Durability durability) {
        DirectPool.close();
        open(durability);
        assertEquals(List.of(), Checker.check());
        return (Object[]) DirectPool.root;
    }

    /** As {@link #again()}, after a cycle of the collector that found nothing to free: so none is due at opening. */
    private Object[] againAsCollected() {
        Nvm.putLong(Layout.KEPT, DurableGraph.allocator().usedBytes());
        return again();
    }

    private Object[] saved(Object... root) {
        open();
        DirectPool.setRoot(root);
        return again();
    }

    private static Map<Object, Object> map(int part, int entries) {
        Map<Object, Object> m = part % 2 == 0 ? new HashMap<>() : new TreeMap<>();
        for (int i = 0; i < entries; i++) {
            m.put("part " + part + ", key " + i, new ArrayList<>(List.of(part, "value " + i, Thread.State.WAITING)));
        }
        return m;
    }

    private static Object[] parts() {
        Object[] all = new Object[PARTS];
        for (int i = 0; i < PARTS; i++) {
            all[i] = new OnDemand<>(map(i, ENTRIES));
        }
        return all;
    }

    private static Object get(Object holder) {
        return ((OnDemand<?>) holder).get();
    }

    private static boolean isLoaded(Object holder) {
        return ((OnDemand<?>) holder).isLoaded();
    }

    private static void set(Object holder, Object v) {
        DirectPool.set(holder, "value", v);
    }

    private static void agrees() {
        assertEquals(List.of(), Checker.check());
    }

    @Test
    void notBeforeItIsAskedFor() {
        Object[] all = saved(parts());
        assertEquals(1 + PARTS, Replicas.size(), "the array and the OnDemands");
        assertFalse(isLoaded(all[3]));
        assertEquals("OnDemand (not loaded)", all[3].toString());
        Object m = get(all[3]);
        assertEquals(map(3, ENTRIES), m);
        assertSame(m, get(all[3]));
        assertTrue(isLoaded(all[3]));
        assertTrue(Replicas.durable(m));
        assertFalse(isLoaded(all[4]));
        assertEquals(1, DurableGraph.metrics().loads());
        agrees();
        for (int i = PARTS - 1; i >= 0; i--) {
            assertEquals(map(i, ENTRIES), get(all[i]));
            agrees();
        }
        assertEquals(PARTS, DurableGraph.metrics().loads());
        for (int i = 0; i < PARTS; i++) {
            assertTrue(isLoaded(all[i]));
        }
    }

    /** In the tables it is as after an ordinary recovery. */
    @Test
    void loadedIsLikeRecovered() {
        Object[] all = saved(parts());
        for (Object part : all) {
            get(part);
        }
        long objects = Replicas.size();
        Object[] plain = new Object[PARTS];
        for (int i = 0; i < PARTS; i++) {
            plain[i] = new Object[] {get(all[i])};
            DirectPool.set(all, i, plain[i]);
        }
        all = again();
        assertEquals(objects, Replicas.size());
        for (int i = 0; i < PARTS; i++) {
            assertEquals(map(i, ENTRIES), ((Object[]) all[i])[0]);
        }
    }

    @Test
    void aLargeOneByManyThreads() {
        Item[] items = new Item[200_000];
        for (int i = 0; i < items.length; i++) {
            items[i] = new Item(i);
            items[i].other = items[i / 2];
        }
        Object[] all = saved(new OnDemand<>(items));
        assertEquals(2, Replicas.size());
        Item[] back = (Item[]) get(all[0]);
        assertEquals(items.length, back.length);
        for (int i = 0; i < back.length; i++) {
            assertEquals(i, back[i].number);
            assertSame(back[i / 2], back[i].other);
        }
        assertEquals(3 + items.length, Replicas.size());
        agrees();
    }

    @Test
    void sharedObjectsAreOne() {
        Item eager = new Item(1);
        Item both = new Item(2);
        both.other = eager;
        int hashed = System.identityHashCode(both);
        Object[] one = {both, eager, "one"};
        Object[] two = {both, one, "two"};
        OnDemand<Object> shared = new OnDemand<>(both);
        Object[] all = saved(new OnDemand<>(one), new OnDemand<>(two), new OnDemand<>(one), eager, shared, new Object[] {shared, new OnDemand<>(eager)});
        assertTrue(isLoaded(((Object[]) all[5])[1]), "it is there anyway");
        assertSame(all[3], get(((Object[]) all[5])[1]));
        assertSame(all[4], ((Object[]) all[5])[0]);
        Object[] backTwo = (Object[]) get(all[1]);
        Object[] backOne = (Object[]) get(all[0]);
        assertSame(backTwo[1], backOne);
        assertSame(backOne, get(all[2]));
        assertSame(backOne[0], backTwo[0]);
        assertSame(backOne[0], get(all[4]));
        assertSame(all[3], ((Item) backOne[0]).other);
        assertSame(all[3], backOne[1]);
        assertEquals(hashed, System.identityHashCode(backOne[0]));
        assertEquals(1, DurableGraph.metrics().loads(), "the second brought all of the first");
        agrees();
    }

    @Test
    void anythingAtAll() {
        OnDemand<Object> self = new OnDemand<>();
        self.set(self);
        Object nested = new OnDemand<>(new Object[] {new OnDemand<>(new OnDemand<>("deep")), self});
        Object[] all = saved(new OnDemand<>(), new OnDemand<>(Thread.State.BLOCKED), new OnDemand<>(int[].class), new OnDemand<>("text"), new OnDemand<>(5), nested, self,
            new OnDemand<>(new byte[3_000_000]), new OnDemand<>(List.of(1, 2, 3)), new OnDemand<>(new Object[0]));
        assertTrue(isLoaded(all[0]));
        assertNull(get(all[0]));
        assertSame(Thread.State.BLOCKED, get(all[1]));
        assertSame(int[].class, get(all[2]));
        assertEquals("text", get(all[3]));
        assertEquals(5, get(all[4]));
        Object[] inner = (Object[]) get(all[5]);
        assertFalse(isLoaded(inner[0]));
        Object innermost = get(inner[0]);
        assertFalse(isLoaded(innermost));
        assertEquals("deep", get(innermost));
        assertSame(all[6], inner[1]);
        assertSame(all[6], get(all[6]));
        assertEquals(3_000_000, ((byte[]) get(all[7])).length);
        assertEquals(List.of(1, 2, 3), get(all[8]));
        assertEquals(0, ((Object[]) get(all[9])).length);
        agrees();
    }

    /** Constants that became durable otherwise before their replicas here were loaded. */
    @Test
    void constantsThatAreDurableOtherwise() {
        Object[] constants = {Thread.State.BLOCKED, int[].class, List.of(), java.util.Collections.emptyList(), Map.of()};
        Object[] holders = new Object[constants.length];
        for (int i = 0; i < holders.length; i++) {
            holders[i] = new OnDemand<>(constants[i]);
        }
        Object[] all = saved(holders, null);
        DirectPool.set(all, 1, constants.clone());
        for (int run = 0; run < 2; run++) {
            for (int i = 0; i < holders.length; i++) {
                assertSame(constants[i], get(((Object[]) all[0])[i]));
                assertSame(constants[i], get(((Object[]) all[0])[i]));
            }
            agrees();
            all = again();
        }
    }

    /** A root may be one. */
    @Test
    void asARoot() {
        open();
        DirectPool.setRoot(new OnDemand<>(map(1, ENTRIES)));
        DirectPool.close();
        open();
        assertEquals(1, Replicas.size());
        assertEquals(map(1, ENTRIES), get(DirectPool.root));
        agrees();
    }

    @Test
    @SuppressWarnings("unchecked")
    void whatIsLoadedIsStoredTo() {
        Object[] all = saved(parts());
        List<Object> list = (List<Object>) ((Map<Object, Object>) get(all[2])).get("part 2, key 7");
        Object[] elements = (Object[]) DirectPool.U.getReference(list, DirectPool.offset(list, "elementData"));
        DirectPool.set(elements, 1, new Item(77));
        agrees();
        all = again();
        list = (List<Object>) ((Map<Object, Object>) get(all[2])).get("part 2, key 7");
        assertEquals(77, ((Item) list.get(1)).number);
        agrees();
    }

    @Test
    void setWithoutLoading() {
        Object[] all = saved(parts());
        set(all[0], new Item(5));
        set(all[1], null);
        assertTrue(isLoaded(all[0]));
        agrees();
        assertEquals(0, DurableGraph.metrics().loads());
        all = again();
        assertEquals(5, ((Item) get(all[0])).number);
        assertNull(get(all[1]));
        assertEquals(map(2, ENTRIES), get(all[2]));
    }

    /** Without being loaded: a holder that becomes durable anew takes along what it stands for. */
    @Test
    void movedWithoutLoading() {
        Object[] all = saved(parts());
        Object[] place = {all[5], new Item(1)};
        DirectPool.set(all, 7, place);
        DirectPool.set(all, 5, (Object) null);
        agrees();
        all = again();
        assertNull(all[5]);
        Object holder = ((Object[]) all[7])[0];
        assertFalse(isLoaded(holder));
        assertEquals(map(5, ENTRIES), get(holder));
        agrees();
    }

    // ---- the collector

    @Test
    void whatIsUnlinkedCanStillBeLoaded() {
        Object[] all = saved(parts());
        Object holder = all[4];
        Object again = all[6];
        Object[] rest = {all[8]};
        for (int i = 0; i < PARTS; i++) {
            DirectPool.set(all, i, (Object) null);
        }
        all[8] = null;
        for (int i = 0; i < 5; i++) {
            System.gc();
            Collector.collect();
            churn(all, 200);
        }
        assertFalse(Replicas.durable(holder));
        assertFalse(isLoaded(holder));
        assertEquals(map(4, ENTRIES), get(holder));
        assertFalse(isLoaded(again));
        DirectPool.set(all, 0, again);
        assertTrue(Replicas.durable(again));
        assertFalse(isLoaded(again));
        agrees();
        Collector.collect();
        churn(all, 200);
        assertEquals(map(8, ENTRIES), get(rest[0]), "who nobody linked again");
        all = again();
        assertEquals(map(6, ENTRIES), get(all[0]));
        agrees();
    }

    private static void churn(Object[] all, int n) {
        for (int i = 0; i < n; i++) {
            DirectPool.set(all, PARTS - 1, map(i, 5));
        }
        DirectPool.set(all, PARTS - 1, (Object) null);
    }

    @Test
    void whatNobodyCanLoadIsFreed() throws Exception {
        open();
        DirectPool.setRoot(new Object[] {new OnDemand<>(new byte[20 << 20]), new OnDemand<>("text")});
        Object[] all = againAsCollected();
        assertTrue(DurableGraph.allocator().isIncomplete());
        Collector.collect();
        assertFalse(DurableGraph.allocator().isIncomplete());
        assertTrue(DurableGraph.allocator().usedBytes() > 20 << 20);
        WeakReference<Object> holder = new WeakReference<>(all[0]);
        DirectPool.set(all, 0, (Object) null);
        for (int i = 0; i < 100 && DurableGraph.allocator().usedBytes() > 20 << 20; i++) {
            Collector.collect();
            System.gc();
            Thread.sleep(10);
        }
        assertNull(holder.get());
        assertTrue(DurableGraph.allocator().usedBytes() < 1 << 20, "used " + DurableGraph.allocator().usedBytes());
        assertEquals("text", get(all[1]));
    }

    /** Before the collector has come by nothing is used again; afterwards all that is free, and nothing else. */
    @Test
    void theFirstCycleFindsWhatIsFree() {
        open();
        Object[] parts = parts();
        DirectPool.setRoot(parts);
        churn(parts, 3000);
        parts = againAsCollected();
        long before = DurableGraph.allocator().usedBytes();
        assertTrue(before > 4 << 20, "used " + before);
        get(parts[1]);
        long frontier = Nvm.getLong(Layout.FRONTIER);
        Item item = new Item(3);
        set(parts[0], item);
        assertTrue(Replicas.position(Replicas.find(item)) >= frontier, "beyond all that there was");
        Collector.collect();
        long after = DurableGraph.allocator().usedBytes();
        assertTrue(after < before / 2, before + ", then " + after);
        for (int round = 0; round < 5; round++) {
            churn(parts, 500);
            Collector.collect();
        }
        assertTrue(Nvm.getLong(Layout.FRONTIER) <= frontier + (2 << 20));
        for (int i = 1; i < PARTS - 1; i++) {
            assertEquals(map(i, ENTRIES), get(parts[i]));
        }
        agrees();
    }

    /** Nothing behind them, or nothing that is not there: then everything is known at once. */
    @Test
    void nothingIsLeftForLater() {
        Item item = new Item(1);
        Object[] all = saved(new OnDemand<>(), new OnDemand<>(item), item);
        assertTrue(isLoaded(all[1]));
        assertFalse(DurableGraph.allocator().isIncomplete());
    }

    /** One that stores finds out what is free, by itself; one that does not has no reason to. */
    @Test
    void theFirstCycleByItself() throws Exception {
        open();
        Object[] parts = parts();
        DirectPool.setRoot(parts);
        parts = againAsCollected();
        long before = DurableGraph.metrics().collections();
        Thread.sleep(400);
        assertEquals(before, DurableGraph.metrics().collections());
        set(parts[0], new byte[20 << 20]);
        for (int i = 0; i < 100 && DurableGraph.metrics().collections() == before; i++) {
            Thread.sleep(50);
        }
        assertEquals(before + 1, DurableGraph.metrics().collections());
        assertFalse(DurableGraph.allocator().isIncomplete());
    }

    /** Runs too short for the collector do not let the file grow for ever, either: to twice what is in use, though no collector has seen the pool before. */
    @ParameterizedTest
    @ValueSource(ints = {0, 10, 40})
    void manyShortRuns(int megabytes) {
        open();
        Object[] root = {new OnDemand<>(new byte[megabytes << 20]), null};
        DirectPool.setRoot(root);
        DirectPool.set(root, 1, new byte[megabytes << 20]);
        Object[] all = again();
        for (int run = 0; run < 100; run++) {
            DirectPool.set(all, 1, "run " + run);
            all = again();
            assertEquals("run " + run, all[1]);
        }
        long frontier = Nvm.getLong(Layout.FRONTIER);
        assertTrue(frontier <= (4L * megabytes << 20) + (8 << 20), "frontier " + frontier);
        assertEquals(megabytes << 20, ((byte[]) get(all[0])).length);
        agrees();
    }

    /** However much of the file is free, and known to be: who does not store has no cycle. */
    @Test
    void noCycleForWhoOnlyReads() throws Exception {
        open();
        Object[] root = {new OnDemand<>(new byte[8 << 20]), null};
        DirectPool.setRoot(root);
        DirectPool.set(root, 1, new byte[20 << 20]);
        DirectPool.set(root, 1, (Object) null);
        Collector.collect();
        for (int run = 0; run < 3; run++) {
            Object[] all = again();
            get(all[0]);
            Thread.sleep(250);
            assertEquals(0, DurableGraph.metrics().collections());
        }
        DirectPool.set((Object[]) DirectPool.root, 1, "stored");
        assertEquals(1, DurableGraph.metrics().collections(), "before anything is stored beyond the end");
    }

    /** The undo log takes its block before the lock is held: under it no cycle could make room. */
    @Test
    void aSectionThatBeginsWithAVolatileStoreHasTheCycleFirst() {
        open();
        Object[] root = {new OnDemand<>(new byte[100]), null, new Item(1)};
        DirectPool.setRoot(root);
        Collector.collect();
        for (int i = 0; i < 200; i++) {
            DirectPool.set(root, 1, new byte[100_000]);
        }
        Object item = again()[2];
        Sections.run(() -> DirectPool.setVolatile(item, "number", 7));
        assertEquals(7, ((Item) item).number);
        assertEquals(1, DurableGraph.metrics().collections());
        agrees();
    }

    /** A holder comes to light while the collector marks, and is unlinked before it gets there: what is behind it stays, for somebody has the holder. */
    @Test
    @SuppressWarnings("unchecked")
    void unlinkedWhileTheCollectorMarks() throws Exception {
        Item[] many = new Item[100_000];
        for (int i = 0; i < many.length; i++) {
            many[i] = new Item(i);
        }
        int met = 0;
        for (int round = 0; round < 20 && met < 3; round++) {
            DirectPool.open(dir.resolve("marked" + round), TowaOptions.DEFAULT.withCapacity(256 << 20));
            // What is behind the last one is marked first, and takes its time.
            DirectPool.setRoot(new Object[] {new OnDemand<>(new Object[] {new OnDemand<>(map(1, ENTRIES))}), new OnDemand<>(many)});
            DirectPool.close();
            DirectPool.open(dir.resolve("marked" + round), TowaOptions.DEFAULT);
            Object[] all = (Object[]) DirectPool.root;
            Thread cycle = Thread.ofPlatform().start(Collector::collect);
            while (!Collector.isMarking() && cycle.isAlive()) {
                Thread.onSpinWait();
            }
            Object[] outer = (Object[]) get(all[0]);
            Object inner = outer[0];
            DirectPool.set(outer, 0, (Object) null);
            met += Collector.isMarking() ? 1 : 0;
            cycle.join();
            for (int i = 0; i < 200; i++) {
                set(all[1], map(i, 5));
            }
            assertFalse(isLoaded(inner));
            assertEquals(map(1, ENTRIES), get(inner));
            DirectPool.close();
        }
        assertTrue(met >= 3, "the collector was always done by then");
    }

    /** Loads, stores, cycles and churn at once. */
    @Test
    void besideEachOther() throws Exception {
        Object[] all = saved(parts());
        CountDownLatch done = new CountDownLatch(1);
        AtomicReference<Throwable> bad = new AtomicReference<>();
        List<Thread> threads = new ArrayList<>();
        for (int t = 0; t < 3; t++) {
            int seed = t;
            threads.add(Thread.ofPlatform().start(() -> {
                try {
                    java.util.Random random = new java.util.Random(seed);
                    for (int i = 0; i < 300; i++) {
                        int k = random.nextInt(PARTS - 4);
                        Object holder = all[k];
                        assertEquals(map(k, ENTRIES), get(holder));
                        DirectPool.set(all, PARTS - 1 - seed, new Object[] {holder, map(i, 3)});
                        DirectPool.set(all, k, holder);
                    }
                } catch (Throwable e) {
                    bad.set(e);
                }
            }));
        }
        Thread cycles = Thread.ofPlatform().start(() -> {
            while (done.getCount() > 0) {
                Collector.collect();
            }
        });
        for (Thread t : threads) {
            t.join();
        }
        done.countDown();
        cycles.join();
        assertNull(bad.get(), () -> String.valueOf(bad.get()));
        agrees();
        Object[] back = again();
        for (int i = 0; i < PARTS - 3; i++) {
            assertEquals(map(i, ENTRIES), get(back[i]));
        }
    }

    // ---- durability, closing

    @Test
    void withCommits() {
        open(Durability.POWER);
        DirectPool.setRoot(parts());
        Object[] all = again(Durability.POWER);
        assertFalse(isLoaded(all[1]));
        assertEquals(map(1, ENTRIES), get(all[1]));
        set(all[2], new Item(4));
        DurableGraph.sync();
        Collector.collect();
        all = again(Durability.POWER);
        assertEquals(4, ((Item) get(all[2])).number);
        assertEquals(map(3, ENTRIES), get(all[3]));
        agrees();
    }

    @Test
    void notAfterThePoolWasClosed() {
        Object[] all = saved(parts());
        get(all[1]);
        again();
        assertEquals(map(1, ENTRIES), get(all[1]), "an ordinary object by now");
        TowaException e = assertThrows(TowaException.class, () -> get(all[2]));
        assertTrue(e.getMessage().contains("is closed"), e.getMessage());
        Object[] now = (Object[]) DirectPool.root;
        NotDurableException refused = assertThrows(NotDurableException.class, () -> DirectPool.set(now, 0, all[2]));
        assertTrue(refused.getMessage().contains("not loaded before its pool was closed") && refused.getMessage().contains("OnDemand.value"), refused.getMessage());
        DirectPool.set(now, 0, all[1]);
        assertNotSame(all[2], now[2]);
        assertEquals(map(2, ENTRIES), get(now[2]));
        agrees();
        DirectPool.close();
        assertThrows(TowaException.class, () -> get(now[3]));
    }

    /** Dug out by a finalizer, after the collector was told that nobody can ask any more. */
    @Test
    void whatWasGivenUpIsNotToBeHad() {
        Object[] all = saved(parts());
        Unloaded u = (Unloaded) DirectPool.U.getReference(all[1], DirectPool.offset(all[1], "value"));
        assertEquals(u.position, Replicas.find(u));
        u.entry.clear();
        assertEquals(0, Replicas.find(u));
        assertThrows(TowaException.class, () -> get(all[1]));
        assertEquals(map(2, ENTRIES), get(all[2]));
    }

    /** While another thread loads, the pool is closed: the load is whole, or refused. */
    @Test
    void closedMeanwhile() throws Exception {
        for (int round = 0; round < 6; round++) {
            DirectPool.open(dir.resolve("round" + round), TowaOptions.DEFAULT.withCapacity(256 << 20));
            Item[] items = new Item[300_000];
            for (int i = 0; i < items.length; i++) {
                items[i] = new Item(i);
            }
            DirectPool.setRoot(new Object[] {new OnDemand<>(items)});
            DirectPool.close();
            DirectPool.open(dir.resolve("round" + round), TowaOptions.DEFAULT);
            Object holder = ((Object[]) DirectPool.root)[0];
            AtomicReference<Object> got = new AtomicReference<>();
            Thread t = Thread.ofPlatform().start(() -> {
                try {
                    got.set(get(holder));
                } catch (TowaException e) {
                    got.set(e);
                }
            });
            Thread.sleep(3 * round);
            DirectPool.close();
            t.join();
            if (got.get() instanceof Item[] back) {
                for (int i = 0; i < items.length; i++) {
                    assertEquals(i, back[i].number);
                }
            } else {
                assertTrue(got.get().toString().contains("is closed"), () -> String.valueOf(got.get()));
            }
        }
    }
}
