package io.towa.graph;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.towa.Durability;
import io.towa.TowaOptions;
import io.towa.medium.Nvm;
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

/** A recovery that is killed at any store leaves a pool that is recovered like the first. */
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

    private static byte[] image(Path p) throws Exception {
        try (RandomAccessFile f = new RandomAccessFile(p.toFile(), "r")) {
            f.seek(Layout.FRONTIER);
            byte[] b = new byte[8];
            f.readFully(b);
            byte[] all = new byte[(int) ByteBuffer.wrap(b).order(ByteOrder.LITTLE_ENDIAN).getLong()];
            f.seek(0);
            f.readFully(all);
            return all;
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

    private static void everyState(Path p, boolean wraps) throws Exception {
        List<byte[]> states = new ArrayList<>();
        CrashAt.run(p, image(p), TowaOptions.DEFAULT, states);
        assertTrue(states.size() > 20, "states " + states.size());
        Path q = SavedPool.file();
        for (byte[] s : states) {
            Files.write(q, s);
            check(SavedPool.load(q));
            if (wraps) {
                noMarkOf(q, LAST);
                assertTrue(number(image(q)) <= 3);
            }
            check(SavedPool.load(q));
        }
        Files.delete(q);
    }

    /** No replica of the graph bears this number. */
    private static void noMarkOf(Path p, long number) {
        SavedPool.open(p);
        try {
            List<Object> left = new ArrayList<>(List.of(SavedPool.root));
            java.util.IdentityHashMap<Object, Object> seen = new java.util.IdentityHashMap<>();
            while (!left.isEmpty()) {
                Object o = left.remove(left.size() - 1);
                if (o == null || seen.put(o, o) != null) {
                    continue;
                }
                long at = Replicas.position(Replicas.find(o));
                assertTrue(Nvm.getLong(at + Layout.MARK) >>> Layout.MARK_SHIFT != number);
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
    }

    @Test
    void anOrdinaryRecovery() throws Exception {
        everyState(SavedPool.save(graph()), false);
    }

    @Test
    void theLastMarkNumber() throws Exception {
        Path p = SavedPool.save(graph());
        number(p, LAST - 1);
        everyState(p, true);
        assertEquals(1, number(image(p)));
    }

    @Test
    void afterACrashInTheLastMarkNumber() throws Exception {
        Path p = SavedPool.save(graph());
        // Marks of the last number, as a walk leaves them that was killed.
        number(p, LAST - 1);
        List<byte[]> states = new ArrayList<>();
        CrashAt.run(p, image(p), TowaOptions.DEFAULT, states);
        byte[] killed = null;
        for (byte[] s : states) {
            killed = number(s) == LAST ? s : killed;
        }
        Path q = SavedPool.file();
        Files.write(q, killed);
        everyState(q, true);
    }

    @Test
    void everyRecoveryHasANumberOfItsOwn() throws Exception {
        Path p = SavedPool.save(graph());
        for (int i = 2; i < 10; i++) {
            SavedPool.load(p);
            assertEquals(i, number(image(p)));
        }
    }

    @Test
    void aPrivateMappingIsNotMarked() throws Exception {
        Path p = SavedPool.save(graph());
        byte[] before = EvolutionTest.content(p);
        long number = number(image(p));
        for (int i = 0; i < 3; i++) {
            check(SavedPool.load(p, TowaOptions.DEFAULT.withDurability(Durability.POWER)));
            assertEquals(number, number(image(p)));
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
        CrashAt.run(p, image(p), TowaOptions.DEFAULT, states);
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
