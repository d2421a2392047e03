package io.towa.graph;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNotEquals;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertSame;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.towa.OnDemand;
import io.towa.PoolException;
import io.towa.TowaException;
import io.towa.TowaOptions;
import io.towa.medium.Nvm;
import io.towa.pool.Layout;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import jdk.internal.misc.Unsafe;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.Test;

/** Behind an OnDemand a crash may have left anything that it may leave elsewhere, for as long as it takes until somebody asks. */
class OnDemandRecoveryTest {
    private static final Unsafe U = Unsafe.getUnsafe();
    private static final int ENTRIES = 40;

    enum E {
        A, B, C
    }

    @AfterEach
    void close() {
        DurableGraph.close();
    }

    private static Object get(Object holder) {
        return ((OnDemand<?>) holder).get();
    }

    private static Object[] open(Path p) {
        SavedPool.root = null;
        SavedPool.open(p);
        assertEquals(List.of(), Checker.check());
        return (Object[]) SavedPool.root;
    }

    // ---- repairs

    /** One whose resize was never finished, as a crash leaves it: its state says so. */
    private static ConcurrentHashMap<Object, Object> broken(int part) {
        ConcurrentHashMap<Object, Object> m = new ConcurrentHashMap<>();
        for (int i = 0; i < ENTRIES; i++) {
            m.put("part " + part + ", key " + i, i);
        }
        U.putInt(m, U.objectFieldOffset(ConcurrentHashMap.class, "sizeCtl"), -2145714174);
        return m;
    }

    private static Path savedBroken() {
        return SavedPool.save(new Object[] {new OnDemand<>(broken(0)), new OnDemand<>(broken(1)), new OnDemand<>(new Object[] {broken(2)})});
    }

    private static void healthy(Object m, int part) {
        Map<?, ?> map = (Map<?, ?>) m;
        assertTrue(U.getInt(map, U.objectFieldOffset(ConcurrentHashMap.class, "sizeCtl")) > 0);
        assertEquals(ENTRIES, map.size());
        for (int i = 0; i < ENTRIES; i++) {
            assertEquals(i, map.get("part " + part + ", key " + i));
        }
    }

    private static void allHealthy(Path p, int rounds) {
        for (int round = 0; round < rounds; round++) {
            Object[] all = open(p);
            healthy(get(all[1 - round]), 1 - round);
            healthy(get(all[round]), round);
            healthy(((Object[]) get(all[2]))[0], 2);
            assertEquals(List.of(), Checker.check());
            DurableGraph.close();
        }
    }

    @Test
    void healedWhenItIsLoaded() {
        allHealthy(savedBroken(), 2);
    }

    /** Killed at any store of a load: what was loaded and what was not are brought back as if it had not been. */
    @Test
    void killedAtAnyStoreOfALoad() throws Exception {
        Path p = savedBroken();
        List<byte[]> states = new ArrayList<>();
        CrashAt.run(SavedPool.image(p), () -> {
            Object[] all = open(p);
            healthy(get(all[0]), 0);
            healthy(((Object[]) get(all[2]))[0], 2);
            DurableGraph.close();
        }, states);
        assertTrue(states.size() > 100, "states: " + states.size());
        Path q = SavedPool.file();
        for (int i = 0; i < states.size(); i++) {
            Files.write(q, states.get(i));
            allHealthy(q, i % 8 == 0 ? 2 : 1);
        }
        Files.delete(q);
    }

    /** Inside a section of the program's own the repair is part of that one, and a crash undoes both. */
    @Test
    void healedInsideASection() throws Exception {
        Path p = savedBroken();
        Object[] all = open(p);
        Path q = SavedPool.file();
        Sections.run(() -> {
            DirectPool.set(all, 2, (Object) null);
            healthy(get(all[0]), 0);
            assertEquals(List.of(), Checker.check());
            try {
                Files.write(q, SavedPool.image(p));
            } catch (java.io.IOException e) {
                throw new AssertionError(e);
            }
        });
        DurableGraph.close();
        allHealthy(q, 2);
        Object[] back = open(p);
        assertNull(back[2]);
        healthy(get(back[0]), 0);
        healthy(get(back[1]), 1);
    }

    /** While another thread is in a section the load waits for its end, and does not stop that thread from loading. */
    @Test
    void waitsForTheSectionOfAnother() throws Exception {
        Object[] all = open(savedBroken());
        CountDownLatch inside = new CountDownLatch(1);
        Thread[] loader = new Thread[1];
        Sections.run(() -> {
            loader[0] = Thread.ofPlatform().start(() -> {
                inside.countDown();
                healthy(get(all[0]), 0);
            });
            try {
                inside.await();
                loader[0].join(100);
            } catch (InterruptedException e) {
                throw new AssertionError(e);
            }
            assertTrue(loader[0].isAlive());
            assertFalse(((OnDemand<?>) all[0]).isLoaded());
            healthy(get(all[1]), 1);
        });
        loader[0].join();
        assertTrue(((OnDemand<?>) all[0]).isLoaded());
        assertEquals(List.of(), Checker.check());
    }

    /** There is no room to heal it: refused, nothing has changed, and with more room it is there. */
    @Test
    void aFullPool() throws Exception {
        Path p = SavedPool.file();
        ConcurrentHashMap<Object, Object> m = new ConcurrentHashMap<>();
        for (int i = 0; i < 8_000; i++) {
            m.put(i, i);
        }
        U.putInt(m, U.objectFieldOffset(ConcurrentHashMap.class, "sizeCtl"), -2145714174);
        Object[] root = {new OnDemand<>(m), null, new OnDemand<>("text")};
        TowaOptions small = TowaOptions.DEFAULT.withCapacity(4 << 20);
        SavedPool.root = root;
        DurableGraph.open(p, small, false);
        SavedPool.root(SavedPool.class, "root");
        List<byte[]> fill = new ArrayList<>();
        assertThrows(PoolException.class, () -> {
            for (;;) {
                fill.add(new byte[60_000]);
                DirectPool.set(root, 1, fill.toArray());
            }
        });
        DurableGraph.close();
        byte[] before = EvolutionTest.content(p);
        Object[] all = open(p);
        for (int i = 0; i < 2; i++) {
            PoolException e = assertThrows(PoolException.class, () -> get(all[0]));
            assertEquals(PoolException.Reason.FULL, e.reason(), e.getMessage());
            assertFalse(((OnDemand<?>) all[0]).isLoaded());
            assertThrows(PoolException.class, () -> get(all[2]), "not before that one is done");
        }
        Path killed = SavedPool.file();
        Files.write(killed, SavedPool.image(p));
        DirectPool.set(all, 1, (Object) null);
        Collector.collect();
        assertEquals("text", get(all[2]));
        Map<?, ?> back = (Map<?, ?>) get(all[0]);
        assertEquals(8_000, back.size());
        assertEquals(List.of(), Checker.check());
        DurableGraph.close();
        // As it was at first, opened with room for it.
        assertTrue(before.length <= 4 << 20);
        DurableGraph.open(p, TowaOptions.DEFAULT.withCapacity(64 << 20), false);
        assertEquals(back, get(((Object[]) SavedPool.root)[0]));
        DurableGraph.close();
        // Killed when it had been refused: what had been mirrored until then was undone.
        DurableGraph.open(killed, TowaOptions.DEFAULT.withCapacity(64 << 20), false);
        assertEquals(back, get(((Object[]) SavedPool.root)[0]));
        assertEquals(List.of(), Checker.check());
    }

    // ---- identity hashes of constants

    private static Map<Object, Object> byConstant(int part) {
        Map<Object, Object> m = new HashMap<>();
        for (int i = 0; i < ENTRIES; i++) {
            m.put(List.of(E.values()[i % 3], i), part);
        }
        return m;
    }

    private static void byConstant(Object m, int part) {
        assertEquals(ENTRIES, ((Map<?, ?>) m).size());
        for (int i = 0; i < ENTRIES; i++) {
            assertEquals(part, ((Map<?, ?>) m).get(List.of(E.values()[i % 3], i)));
        }
    }

    /** What another run, whose constants had other hashes, would have written. */
    private static Path otherRun(Object... root) {
        Path p = SavedPool.save(root);
        Object[] all = open(p);
        for (Object holder : all) {
            Map<?, ?> m = (Map<?, ?>) (holder instanceof OnDemand ? get(holder) : holder);
            Object[] table = (Object[]) U.getReference(m, U.objectFieldOffset(HashMap.class, "table"));
            Object[] old = table.clone();
            for (int i = 0; i < table.length; i++) {
                table[i] = old[(i + 1) % old.length];
                for (Object n = table[i]; n != null; n = U.getReference(n, DirectPool.offset(n, "next"))) {
                    DirectPool.set(n, "hash", U.getInt(n, DirectPool.offset(n, "hash")) - 1);
                }
            }
            Stores.range(table, 0, table.length);
        }
        for (E e : E.values()) {
            Nvm.putInt(Replicas.position(Replicas.find(e)) + Layout.HASH, System.identityHashCode(e) ^ 0x155);
        }
        DurableGraph.close();
        return p;
    }

    /** Some are loaded in one run, others in the next, in which the constants have the hashes that the first run has left in the pool. */
    @Test
    void tablesThatAreLoadedInAnotherRun() throws Exception {
        for (boolean eager : new boolean[] {false, true}) {
            Path p = otherRun(new OnDemand<>(byConstant(0)), new OnDemand<>(byConstant(1)), eager ? byConstant(2) : new OnDemand<>(byConstant(2)));
            Object[] all = open(p);
            assertEquals(eager, Loads.rehash());
            byConstant(get(all[1]), 1);
            assertTrue(Loads.rehash());
            DurableGraph.close();
            all = open(p);
            assertTrue(Loads.rehash());
            byConstant(eager ? all[2] : get(all[2]), 2);
            byConstant(get(all[1]), 1);
            byConstant(get(all[0]), 0);
            assertEquals(List.of(), Checker.check());
            // Nothing is left for later: the next recovery meets all, and that is it.
            for (int i = 0; i < 3; i++) {
                Object m = eager && i == 2 ? all[2] : get(all[i]);
                DirectPool.set(all, i, m);
            }
            DurableGraph.close();
            all = open(p);
            assertFalse(Loads.rehash());
            for (int i = 0; i < 3; i++) {
                byConstant(all[i], i);
            }
            DurableGraph.close();
        }
    }

    @Test
    void killedWhileTablesAreMadeAnew() throws Exception {
        Path p = otherRun(new OnDemand<>(byConstant(0)), new OnDemand<>(byConstant(1)), byConstant(2));
        List<byte[]> states = new ArrayList<>();
        CrashAt.run(SavedPool.image(p), () -> {
            Object[] all = open(p);
            byConstant(get(all[0]), 0);
            DurableGraph.close();
        }, states);
        assertTrue(states.size() > 50, "states: " + states.size());
        Path q = SavedPool.file();
        for (int i = 0; i < states.size(); i++) {
            Files.write(q, states.get(i));
            for (int round = 0; round < (i % 8 == 0 ? 2 : 1); round++) {
                int first = i + round & 1;
                Object[] all = open(q);
                byConstant(all[2], 2);
                byConstant(get(all[first]), first);
                byConstant(get(all[1 - first]), 1 - first);
                DurableGraph.close();
            }
        }
        Files.delete(q);
    }

    /** A constant becomes durable before its replica in the pool is loaded: it has the hash that it always has. */
    @Test
    void aConstantThatIsDurableTwice() {
        Path p = SavedPool.save(new Object[] {new OnDemand<>(byConstant(0)), null});
        Object[] all = open(p);
        DirectPool.set(all, 1, byConstant(1));
        byConstant(get(all[0]), 0);
        assertFalse(Loads.rehash());
        assertEquals(List.of(), Checker.check());
        Collector.collect();
        assertEquals(List.of(), Checker.check());
        DurableGraph.close();
        all = open(p);
        byConstant(all[1], 1);
        byConstant(get(all[0]), 0);
        assertEquals(List.of(), Checker.check());
    }

    // ---- damage

    private static Object[] graph() {
        Object[] inner = {"second", 5, null, new int[] {1, 2, 3}, Thread.State.BLOCKED, int[].class, new ArrayList<>(List.of(1, 2)), new Object[2000]};
        Arrays.fill((Object[]) inner[7], "many");
        Map<Object, Object> m = new HashMap<>();
        for (int i = 0; i < 50; i++) {
            m.put("k" + i, i);
        }
        return new Object[] {new OnDemand<>(inner), new OnDemand<>(m), new OnDemand<>(new OnDemand<>("deep"))};
    }

    /** Words of the used part, at random: what is loaded is possible, all else is refused; the collector too; nothing crashes. */
    @Test
    void damageBehindThem() throws Exception {
        Path good = SavedPool.save(graph());
        byte[] all = SavedPool.image(good);
        int end = (int) ByteBuffer.wrap(all).order(ByteOrder.LITTLE_ENDIAN).getLong((int) Layout.FRONTIER);
        all = Arrays.copyOf(all, end);
        Random random = new Random(11);
        int[] count = new int[4];
        long last = Long.getLong("towa.damage.last", 1000);
        Path p = SavedPool.file();
        for (int i = 0; i < last; i++) {
            Files.write(p, DamageTest.damaged(all, random));
            SavedPool.root = "untouched";
            try {
                SavedPool.open(p);
            } catch (TowaException e) {
                assertSame("untouched", SavedPool.root);
                count[0]++;
                continue;
            }
            if (random.nextBoolean()) {
                collect(count);
            }
            load(SavedPool.root, count);
            collect(count);
            DurableGraph.close();
        }
        System.out.println("damaged pools: refused when opened " + count[0] + ", loads refused " + count[1] + ", done " + count[2] + ", cycles refused " + count[3]);
        assertTrue(count[0] > last / 50 && count[1] > last / 50 && count[2] > last / 5 && count[3] > last / 100, Arrays.toString(count));
    }

    private static void collect(int[] count) {
        try {
            Collector.collect();
        } catch (TowaException e) {
            count[3]++;
        }
    }

    private static void load(Object root, int[] count) {
        if (!(root instanceof Object[] holders)) {
            return;
        }
        for (Object h : holders) {
            try {
                for (int depth = 0; depth < 5 && h instanceof OnDemand<?> o; depth++) {
                    h = o.get();
                    count[2]++;
                }
            } catch (PoolException e) {
                assertNotEquals(PoolException.Reason.FULL, e.reason());
                assertFalse(((OnDemand<?>) h).isLoaded());
                count[1]++;
            }
        }
    }
}
