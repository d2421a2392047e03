package io.towa.graph;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.towa.Durability;
import io.towa.TowaOptions;
import io.towa.pool.Layout;
import java.io.RandomAccessFile;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import jdk.internal.misc.Unsafe;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;

/** A recovery stores nothing, but what repairs take; and one that is killed at any of those stores leaves a pool that is recovered like the first. */
class RecoveryCrashTest {
    private static final Unsafe U = Unsafe.getUnsafe();
    private static final long LAST = Layout.MAX_MARK_NUMBER;

    private static Object graph() {
        Map<Object, Object> m = new HashMap<>();
        for (int i = 0; i < 40; i++) {
            m.put("k" + i, new Object[] {i, m, Thread.State.WAITING});
        }
        return m;
    }

    private static void check(Object o) {
        Map<?, ?> m = (Map<?, ?>) o;
        assertEquals(40, m.size());
        for (int i = 0; i < 40; i++) {
            Object[] a = (Object[]) m.get("k" + i);
            assertEquals(i, a[0]);
            assertTrue(a[1] == m && a[2] == Thread.State.WAITING);
        }
    }

    private static long number(byte[] image) {
        return ByteBuffer.wrap(image).order(ByteOrder.LITTLE_ENDIAN).getLong((int) Layout.MARK_NUMBER);
    }

    private static void number(Path p, long v) throws Exception {
        try (RandomAccessFile f = new RandomAccessFile(p.toFile(), "rw")) {
            f.seek(Layout.MARK_NUMBER);
            f.write(ByteBuffer.allocate(8).order(ByteOrder.LITTLE_ENDIAN).putLong(v).array());
        }
    }

    /** How a recovery that is killed at each of its stores leaves the pool. */
    private static int everyState(Path p) throws Exception {
        List<byte[]> states = new ArrayList<>();
        CrashAt.run(p, SavedPool.image(p), TowaOptions.DEFAULT, states);
        Path q = SavedPool.file();
        for (byte[] s : states) {
            Files.write(q, s);
            check(SavedPool.load(q));
            check(SavedPool.load(q));
        }
        Files.deleteIfExists(q);
        return states.size();
    }

    /** States of an opening that stores nothing but that counts may come to be behind: the word stored, and written back. */
    private static final int ONE_WORD = 2;

    /** Positions of the replicas that the pool's root reaches. */
    private static List<Long> replicas(Path p) {
        List<Long> all = new ArrayList<>();
        SavedPool.open(p);
        try {
            List<Object> left = new ArrayList<>(List.of(SavedPool.root));
            java.util.IdentityHashMap<Object, Object> seen = new java.util.IdentityHashMap<>();
            while (!left.isEmpty()) {
                Object o = left.remove(left.size() - 1);
                if (o == null || seen.put(o, o) != null) {
                    continue;
                }
                all.add(Replicas.position(Replicas.find(o)));
                ClassInfo c = ClassInfos.of(o);
                for (int i = 0; c.form == Layout.FORM_OBJECT && i < c.types.length; i++) {
                    if (c.types[i] == ClassInfo.REFERENCE) {
                        left.add(U.getReference(o, c.dram[i]));
                    }
                }
                if (o instanceof Object[] a) {
                    left.addAll(java.util.Arrays.asList(a));
                }
            }
        } finally {
            DurableGraph.close();
        }
        return all;
    }

    private static void put(Path p, long at, long v, int bytes) throws Exception {
        try (RandomAccessFile f = new RandomAccessFile(p.toFile(), "rw")) {
            f.seek(at);
            f.write(ByteBuffer.allocate(8).order(ByteOrder.LITTLE_ENDIAN).putLong(v).array(), 0, bytes);
        }
    }

    @Test
    void anOrdinaryRecovery() throws Exception {
        Path p = SavedPool.save(graph());
        byte[] before = EvolutionTest.content(p);
        assertEquals(ONE_WORD, everyState(p));
        org.junit.jupiter.api.Assertions.assertArrayEquals(before, EvolutionTest.content(p));
        check(SavedPool.load(p));
    }

    /** Objects that were saved without an identity hash get one, and their replicas too. */
    @Test
    void savedWithoutHashes() throws Exception {
        Path p = SavedPool.save(graph());
        List<Long> all = replicas(p);
        for (long at : all) {
            put(p, at + Layout.HASH, 0, 4);
        }
        assertTrue(everyState(p) > 20);
        check(SavedPool.load(p));
        byte[] after = SavedPool.image(p);
        for (long at : all) {
            assertTrue(ByteBuffer.wrap(after).order(ByteOrder.LITTLE_ENDIAN).getInt((int) at + Layout.HASH) > 0);
        }
    }

    /** Hashes that lead elsewhere: of objects that had one before they became durable; or to another object's replica. */
    @Test
    void savedWithOtherHashes() throws Exception {
        Path p = SavedPool.save(graph());
        List<Long> all = replicas(p);
        for (int shift : new int[] {1, 40}) {
            for (int i = 0; i < all.size(); i++) {
                put(p, all.get(i) + Layout.HASH, PositionTable.hashAt(all.get((i + shift) % all.size())), 4);
            }
            check(SavedPool.load(p));
            SavedPool.open(p);
            assertEquals(all.size(), Replicas.size());
            // What is dropped is counted where it was entered.
            SavedPool.root = null;
            Roots.mirror(Roots.all()[0]);
            Collector.collect();
            assertEquals(0, Replicas.size());
            DurableGraph.close();
            p = SavedPool.save(graph());
            all = replicas(p);
        }
        for (long at : all) {
            put(p, at + Layout.HASH, 77, 4);
        }
        check(SavedPool.load(p));
    }

    /** Two replicas stand for one constant: it is one object, and counted once. */
    @Test
    void twoReplicasOfOneConstant() throws Exception {
        Path p = SavedPool.save(new Object[] {Thread.State.BLOCKED, Thread.State.WAITING, null});
        List<Long> all = replicas(p);
        byte[] image = SavedPool.image(p);
        int patched = 0;
        for (long at : all) {
            if (new String(image, (int) at + Layout.DATA, 7, java.nio.charset.StandardCharsets.ISO_8859_1).equals("WAITING")) {
                put(p, at + Layout.DATA, ByteBuffer.wrap("BLOCKED\0".getBytes(java.nio.charset.StandardCharsets.ISO_8859_1)).order(ByteOrder.LITTLE_ENDIAN).getLong(), 7);
                patched++;
            }
        }
        assertEquals(1, patched);
        SavedPool.open(p);
        try {
            Object[] a = (Object[]) SavedPool.root;
            assertTrue(a[0] == Thread.State.BLOCKED && a[1] == Thread.State.BLOCKED);
            assertEquals(2, Replicas.size(), "the array and the constant");
        } finally {
            DurableGraph.close();
        }
    }

    /** Other builds' recoveries number themselves and mark replicas: that means nothing, up to the last number. */
    @ParameterizedTest
    @ValueSource(longs = {2, LAST - 1, LAST})
    void theLastMarkNumber(long number) throws Exception {
        Path p = SavedPool.save(graph());
        for (long at : replicas(p)) {
            put(p, at + Layout.MARK, number << 36 | at >> 4, 8);
        }
        number(p, number);
        assertEquals(ONE_WORD, everyState(p));
        check(SavedPool.load(p));
        assertEquals(number, number(SavedPool.image(p)));
    }

    @Test
    void aPrivateMapping() throws Exception {
        Path p = SavedPool.save(graph());
        byte[] before = EvolutionTest.content(p);
        long number = number(SavedPool.image(p));
        for (int i = 0; i < 3; i++) {
            check(SavedPool.load(p, TowaOptions.DEFAULT.withDurability(Durability.POWER)));
            assertEquals(number, number(SavedPool.image(p)));
        }
        org.junit.jupiter.api.Assertions.assertArrayEquals(before, EvolutionTest.content(p));
        check(SavedPool.load(p));
    }

    @ParameterizedTest
    @ValueSource(ints = {3, 40, 200})
    void aRepair(int entries) throws Exception {
        ConcurrentHashMap<Object, Object> m = new ConcurrentHashMap<>();
        for (int i = 0; i < entries; i++) {
            m.put("k" + i, i);
        }
        U.putInt(m, U.objectFieldOffset(ConcurrentHashMap.class, "sizeCtl"), -2145714174);
        Path p = SavedPool.save(m);
        List<byte[]> states = new ArrayList<>();
        CrashAt.run(p, SavedPool.image(p), TowaOptions.DEFAULT, states);
        Path q = SavedPool.file();
        for (byte[] s : states) {
            Files.write(q, s);
            Map<?, ?> back = (Map<?, ?>) SavedPool.load(q);
            assertEquals(entries, back.size());
            assertEquals(m, back);
            assertEquals(m, SavedPool.load(q));
        }
        Files.delete(q);
    }
}
