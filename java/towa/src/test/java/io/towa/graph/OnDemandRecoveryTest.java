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
import io.towa.pool.SavedLog;
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
import java.util.concurrent.LinkedBlockingDeque;
import jdk.internal.misc.Unsafe;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;

/** Behind an OnDemand a crash may have left anything that it may leave elsewhere, for as long as it takes until somebody asks. */
class OnDemandRecoveryTest {
    private static final Unsafe U = Unsafe.getUnsafe();
    private static final int ENTRIES = 40;
    /** sizeCtl of a map that somebody resizes. */
    private static final int RESIZING = -2145714174;

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

    /** What a kill at any moment of {@code run} leaves, or the loss of power. */
    private static void crash(boolean power, Path p, Runnable run, List<byte[]> states) throws Exception {
        if (power) {
            CrashAt.withoutPower(SavedPool.image(p), run, states);
        } else {
            CrashAt.run(SavedPool.image(p), run, states);
        }
    }

    // ---- repairs

    /** One whose resize was never finished, as a crash leaves it: its state says so. */
    private static ConcurrentHashMap<Object, Object> broken(int part) {
        ConcurrentHashMap<Object, Object> m = new ConcurrentHashMap<>();
        for (int i = 0; i < ENTRIES; i++) {
            m.put("part " + part + ", key " + i, i);
        }
        U.putInt(m, U.objectFieldOffset(ConcurrentHashMap.class, "sizeCtl"), RESIZING);
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

    /** Both ways of linking are to be mended, node by node: more than a block of the undo log holds. */
    private static LinkedBlockingDeque<Object> brokenDeque() {
        LinkedBlockingDeque<Object> q = new LinkedBlockingDeque<>();
        for (int i = 0; i < 150; i++) {
            q.add("item " + i);
        }
        Object first = U.getReference(q, DirectPool.offset(q, "first"));
        for (Object n = first; n != null; n = U.getReference(n, DirectPool.offset(n, "next"))) {
            U.putReference(n, DirectPool.offset(n, "prev"), null);
        }
        return q;
    }

    /** An empty map whose first table somebody is about to make: one field is to be mended. */
    private static ConcurrentHashMap<Object, Object> reserved() {
        ConcurrentHashMap<Object, Object> m = new ConcurrentHashMap<>();
        U.putInt(m, U.objectFieldOffset(ConcurrentHashMap.class, "sizeCtl"), -1);
        return m;
    }

    private static void healthyDeque(Object o) {
        LinkedBlockingDeque<?> q = (LinkedBlockingDeque<?>) o;
        assertEquals(150, q.size());
        java.util.Iterator<?> back = q.descendingIterator();
        for (int i = 149; i >= 0; i--) {
            assertEquals("item " + i, back.next());
        }
    }

    /**
     * Inside a section of the program's own the repair is none of its stores: another thread, which has the value as well, stores to it, and that stays when a crash
     * undoes the section. Killed anywhere, or the power lost.
     */
    @ParameterizedTest
    @ValueSource(booleans = {false, true})
    void killedAnywhereInASectionThatHeals(boolean power) throws Exception {
        OnDemandTest.Item[] items = new OnDemandTest.Item[300];
        for (int i = 0; i < items.length; i++) {
            items[i] = new OnDemandTest.Item(0);
        }
        Path p = SavedPool.save(new Object[] {new OnDemand<>(new Object[] {reserved(), brokenDeque(), broken(0), reserved()}), items, new OnDemandTest.Item(0)});
        List<byte[]> states = new ArrayList<>();
        crash(power, p, () -> {
            Object[] all = open(p);
            Sections.run(() -> aSectionThatHeals(all));
            assertEquals(List.of(), Checker.check());
            DurableGraph.close();
        }, states);
        Path q = SavedPool.file();
        int[] seen = new int[3];
        for (byte[] s : states) {
            Files.write(q, s);
            Object[] all = open(q);
            OnDemandTest.Item[] back = (OnDemandTest.Item[]) all[1];
            for (OnDemandTest.Item item : back) {
                assertEquals(back[0].number, item.number, "the section is there whole or not at all");
            }
            Object[] healed = (Object[]) get(all[0]);
            healthyDeque(healed[1]);
            boolean other = ((OnDemandTest.Item) all[2]).number == 1;
            if (other) {
                // A map that was healed again would have another; its count would be looked at after any crash.
                for (int i : new int[] {0, 2, 3}) {
                    assertEquals(64, U.getInt(healed[i], DirectPool.offset(healed[i], "sizeCtl")), "to what was healed first, or last");
                }
            }
            seen[back[0].number == 1 ? 2 : other ? 1 : 0]++;
            DurableGraph.close();
        }
        Files.delete(q);
        System.out.println("in a section that heals: " + Arrays.toString(seen));
        assertTrue(seen[0] > 20 && seen[1] > 50 && seen[2] > 0, Arrays.toString(seen));
    }

    private static void aSectionThatHeals(Object[] all) {
        OnDemandTest.Item[] items = (OnDemandTest.Item[]) all[1];
        for (int i = 0; i < 100; i++) {
            DirectPool.set(items[i], "number", 1L);
        }
        Object[] healed = (Object[]) get(all[0]);
        healthyDeque(healed[1]);
        healthy(healed[2], 0);
        Thread other = Thread.ofPlatform().start(() -> {
            DirectPool.set(healed[2], "sizeCtl", 64);
            DirectPool.set(healed[0], "sizeCtl", 64);
            DirectPool.set(healed[3], "sizeCtl", 64);
            // So often that there are images between this and the section's next store.
            for (int i = 0; i < 20; i++) {
                DirectPool.set(all[2], "number", 1L);
            }
        });
        try {
            other.join();
        } catch (InterruptedException e) {
            throw new AssertionError(e);
        }
        for (int i = 100; i < items.length; i++) {
            DirectPool.set(items[i], "number", 1L);
        }
    }

    /** What the section stores to a value that it has healed is undone with it. */
    @Test
    void storedToWhatWasHealedInTheSameSection() throws Exception {
        Path p = savedBroken();
        Object[] all = open(p);
        Path q = SavedPool.file();
        Sections.run(() -> {
            DirectPool.set(all, 2, (Object) null);
            Object m = get(all[0]);
            // A field that was mended.
            DirectPool.set(m, "sizeCtl", 7777);
            try {
                Files.write(q, SavedPool.image(p));
            } catch (java.io.IOException e) {
                throw new AssertionError(e);
            }
        });
        DurableGraph.close();
        Object undone = get(open(q)[0]);
        assertEquals(48, U.getInt(undone, DirectPool.offset(undone, "sizeCtl")));
        DurableGraph.close();
        allHealthy(q, 2);
        Object stays = get(open(p)[0]);
        assertEquals(7777, U.getInt(stays, DirectPool.offset(stays, "sizeCtl")));
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

    /** One that holds what must be healed, a small map first and then a large one, and no room for the latter. */
    private static Path full() {
        Path p = SavedPool.file();
        ConcurrentHashMap<Object, Object> m = new ConcurrentHashMap<>();
        for (int i = 0; i < 8_000; i++) {
            m.put(i, i);
        }
        U.putInt(m, U.objectFieldOffset(ConcurrentHashMap.class, "sizeCtl"), RESIZING);
        Object[] root = {new OnDemand<>(new Object[] {broken(0), m, E.C}), null, new OnDemand<>("text")};
        SavedPool.root = root;
        DurableGraph.open(p, TowaOptions.DEFAULT.withCapacity(4 << 20), false);
        SavedPool.root(SavedPool.class, "root");
        List<byte[]> fill = new ArrayList<>();
        assertThrows(PoolException.class, () -> {
            for (;;) {
                fill.add(new byte[60_000]);
                DirectPool.set(root, 1, fill.toArray());
            }
        });
        DurableGraph.close();
        return p;
    }

    /** When the power goes: what had been mirrored until then is undone before the log is empty. */
    @Test
    void aFullPoolWithoutPower() throws Exception {
        Path p = full();
        long[] state = new long[1];
        int[] seen = new int[3];
        CrashAt.withoutPower(SavedPool.image(p), () -> {
            Object[] all = open(p);
            state[0] = stateOfFirst(all[0]);
            assertEquals(PoolException.Reason.FULL, assertThrows(PoolException.class, () -> get(all[0])).reason());
            DurableGraph.close();
        }, image -> {
            ByteBuffer b = ByteBuffer.wrap(image).order(ByteOrder.LITTLE_ENDIAN);
            boolean healed = state[0] != 0 && b.getInt((int) state[0]) != RESIZING;
            seen[!healed ? 0 : SavedLog.entries(image) > 0 ? 1 : 2]++;
        });
        assertEquals(0, seen[2], "healed in part, and nothing to undo that with");
        assertTrue(seen[0] > 0 && seen[1] > 0, Arrays.toString(seen));
    }

    /** There is no room to heal it: refused, nothing has changed, and with more room it is there. */
    @Test
    void aFullPool() throws Exception {
        Path p = full();
        byte[] before = EvolutionTest.content(p);
        Object[] all = open(p);
        for (int i = 0; i < 2; i++) {
            PoolException e = assertThrows(PoolException.class, () -> {
                // Others may meet a constant at any time: what they find once must stay.
                Nvm.record(new Stored(() -> assertEquals(0, Replicas.find(E.C))));
                try {
                    get(all[0]);
                } finally {
                    Nvm.record(null);
                }
            });
            assertEquals(0, Replicas.find(E.C));
            assertEquals(PoolException.Reason.FULL, e.reason(), e.getMessage());
            assertFalse(((OnDemand<?>) all[0]).isLoaded());
            assertEquals("text", get(all[2]), "what needs no room");
            assertEquals(RESIZING, Nvm.getInt(stateOfFirst(all[0])), "what had been mirrored until then was undone");
        }
        Path killed = SavedPool.file();
        Files.write(killed, SavedPool.image(p));
        DirectPool.set(all, 1, (Object) null);
        Collector.collect();
        assertEquals("text", get(all[2]));
        Map<?, ?> back = (Map<?, ?>) ((Object[]) get(all[0]))[1];
        assertEquals(8_000, back.size());
        healthy(((Object[]) get(all[0]))[0], 0);
        assertEquals(List.of(), Checker.check());
        DurableGraph.close();
        // As it was at first, opened with room for it.
        assertTrue(before.length <= 4 << 20);
        DurableGraph.open(p, TowaOptions.DEFAULT.withCapacity(64 << 20), false);
        assertEquals(back, ((Object[]) get(((Object[]) SavedPool.root)[0]))[1]);
        DurableGraph.close();
        // Killed when it had been refused.
        DurableGraph.open(killed, TowaOptions.DEFAULT.withCapacity(64 << 20), false);
        assertEquals(back, ((Object[]) get(((Object[]) SavedPool.root)[0]))[1]);
        assertEquals(List.of(), Checker.check());
    }

    /** Does something whenever something is stored in the pool. */
    private record Stored(Runnable then) implements Nvm.Recorder {
        @Override
        public void store(long where, long bits, int bytes) {
            then.run();
        }

        @Override
        public void writeBack(long where, long bytes) {}

        @Override
        public void fence() {}
    }

    /** Where its state is in the pool, of the map that is the first element of the array behind {@code holder}, which is not loaded. */
    private static long stateOfFirst(Object holder) {
        Unloaded u = (Unloaded) U.getReference(holder, DirectPool.offset(holder, "value"));
        ClassInfo c = ClassInfos.of(new ConcurrentHashMap<>());
        return Nvm.getLong(u.position + Layout.DATA) + c.nvm[c.slotAt(U.objectFieldOffset(ConcurrentHashMap.class, "sizeCtl"))];
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
            // All has come by.
            DurableGraph.close();
            all = open(p);
            assertFalse(Loads.rehash());
            for (int i = 0; i < 3; i++) {
                assertEquals(eager && i == 2, !(all[i] instanceof OnDemand<?> o) || o.isLoaded());
                byConstant(eager && i == 2 ? all[i] : get(all[i]), i);
            }
            Nvm.putLongDurably(Layout.REHASH, Layout.STALE);
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

    @ParameterizedTest
    @ValueSource(booleans = {false, true})
    void killedWhileTablesAreMadeAnew(boolean power) throws Exception {
        Path p = otherRun(new OnDemand<>(byConstant(0)), new OnDemand<>(byConstant(1)), byConstant(2));
        Hashes hashes = Hashes.of(p);
        List<byte[]> states = new ArrayList<>();
        crash(power, p, () -> {
            Object[] all = open(p);
            byConstant(get(all[0]), 0);
            DurableGraph.close();
        }, states);
        assertTrue(states.size() > (power ? 10 : 50), "states: " + states.size());
        Path q = SavedPool.file();
        for (int i = 0; i < states.size(); i++) {
            hashes.check(states.get(i));
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

    /**
     * Where hashes, and references to tables, lie in a pool. A table that is made for the hashes of this run must not be there while the constants have those of another: a run in which they have
     * these again would take the table for sound.
     */
    private record Hashes(byte[] before, long[] constants, List<Long> tables) {
        static Hashes of(Path p) throws Exception {
            byte[] before = SavedPool.image(p);
            Path copy = SavedPool.file();
            Files.write(copy, before);
            List<Long> tables = new ArrayList<>();
            long[] constants = new long[E.values().length];
            for (Object o : open(copy)) {
                Object m = o instanceof OnDemand ? get(o) : o;
                ClassInfo c = ClassInfos.of(m);
                tables.add(Replicas.position(Replicas.find(m)) + c.nvm[c.slotAt(U.objectFieldOffset(HashMap.class, "table"))]);
            }
            for (E e : E.values()) {
                constants[e.ordinal()] = Replicas.position(Replicas.find(e)) + Layout.HASH;
            }
            DurableGraph.close();
            byte[] after = SavedPool.image(copy);
            assertTrue(tables.stream().allMatch(at -> word(before, at) != word(after, at)), "tables were made anew");
            assertTrue(Arrays.stream(constants).allMatch(at -> word(before, at) != word(after, at)));
            Files.delete(copy);
            return new Hashes(before, constants, tables);
        }

        void check(byte[] image) {
            // A section that was broken off is undone.
            if (ByteBuffer.wrap(image).order(ByteOrder.LITTLE_ENDIAN).getLong((int) Layout.UNDO) == Layout.NONE && tables.stream().anyMatch(at -> word(before, at) != word(image, at))) {
                for (E e : E.values()) {
                    assertEquals(System.identityHashCode(e), word(image, constants[e.ordinal()]));
                }
            }
        }

        private static int word(byte[] image, long at) {
            return ByteBuffer.wrap(image).order(ByteOrder.LITTLE_ENDIAN).getInt((int) at);
        }
    }

    /** In a section that has a log already, so that its word is not stored again: that the others are stale is known first. */
    @ParameterizedTest
    @ValueSource(booleans = {false, true})
    void killedWhileASectionMakesTablesAnew(boolean power) throws Exception {
        Path p = otherRun(new OnDemand<>(byConstant(0)), new OnDemand<>(byConstant(1)));
        List<byte[]> states = new ArrayList<>();
        crash(power, p, () -> {
            Object[] all = open(p);
            Sections.run(() -> {
                DirectPool.set(all, 0, all[0]);
                byConstant(get(all[0]), 0);
                DirectPool.set(all, 1, all[1]);
            });
            DurableGraph.close();
        }, states);
        assertTrue(states.size() > (power ? 10 : 50), "states: " + states.size());
        Path q = SavedPool.file();
        int stale = 0;
        for (byte[] s : states) {
            Files.write(q, s);
            Object[] all = open(q);
            stale += Loads.rehash() ? 1 : 0;
            byConstant(get(all[1]), 1);
            byConstant(get(all[0]), 0);
            DurableGraph.close();
        }
        Files.delete(q);
        assertTrue(stale > 0 && stale < states.size(), stale + " of " + states.size());
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

    /** Against the rule: its hash lies behind an OnDemand. */
    static final class Asking {
        final OnDemand<String> name;

        Asking(String s) {
            name = new OnDemand<>(s);
        }

        @Override
        public int hashCode() {
            return java.util.Objects.hashCode(name.get());
        }

        @Override
        public boolean equals(Object o) {
            return o instanceof Asking a && java.util.Objects.equals(name.get(), a.name.get());
        }
    }

    /** A table that is looked at stays as it is if its keys cannot say where they belong; nothing is lost. */
    @Test
    void keysThatAsk() {
        for (boolean later : new boolean[] {false, true}) {
            Map<Object, Object> m = new HashMap<>();
            for (int i = 0; i < 20; i++) {
                m.put(new Asking("key " + i), i);
            }
            Path p = SavedPool.save(new Object[] {later ? new OnDemand<>(m) : m, E.A});
            open(p);
            Nvm.putInt(Replicas.position(Replicas.find(E.A)) + Layout.HASH, System.identityHashCode(E.A) ^ 0x155);
            Nvm.putLong(Layout.REHASH, later ? Layout.STALE : Layout.NONE);
            DurableGraph.close();
            for (int round = 0; round < 2; round++) {
                Object[] all = open(p);
                Map<?, ?> back = (Map<?, ?>) (later ? get(all[0]) : all[0]);
                assertEquals(20, back.size());
                for (int i = 0; i < 20; i++) {
                    assertEquals(i, back.get(new Asking("key " + i)));
                }
                assertEquals(List.of(), Checker.check());
                DurableGraph.close();
            }
        }
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

    /** In what nobody asks for: stores go on, and a full pool is called that. */
    @Test
    void damageThatNobodyAsksFor() throws Exception {
        TowaOptions small = TowaOptions.DEFAULT.withCapacity(4 << 20);
        Path q = SavedPool.file();
        SavedPool.root = new Object[] {new OnDemand<>(new OnDemandTest.Item(1)), null, new OnDemand<>("text")};
        DurableGraph.open(q, small, false);
        SavedPool.root(SavedPool.class, "root");
        DurableGraph.close();
        Object[] all = open(q);
        Unloaded u = (Unloaded) U.getReference(all[0], DirectPool.offset(all[0], "value"));
        Nvm.putInt(u.position + Layout.CLASS_INDEX, 999);
        PoolException full = assertThrows(PoolException.class, () -> {
            for (int i = 0; i < 20; i++) {
                DirectPool.set(all, 1, new byte[1 << 20]);
            }
        });
        assertEquals(PoolException.Reason.FULL, full.reason(), full.getMessage());
        assertEquals("text", get(all[2]));
        assertEquals(PoolException.Reason.DAMAGED, assertThrows(PoolException.class, () -> get(all[0])).reason());
        assertEquals(List.of(), Checker.check());
    }
}
