package io.towa.graph;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.towa.PoolException;
import io.towa.TowaException;
import io.towa.pool.Layout;
import java.io.RandomAccessFile;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Random;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;

/** Whatever a damaged file says, it is refused in words, or what it says is possible: the JVM does not crash, and no static field changes. */
class DamageTest {
    static final class Holder {
        Object any;
        String text = "text";
        int[] numbers = {1, 2, 3};
        Object[] all;
        Thread.State state = Thread.State.BLOCKED;
        Class<?> type = Holder.class;
        List<Object> empty = new ArrayList<>();
        boolean flag = true;
    }

    private static Holder graph() {
        Holder h = new Holder();
        h.all = new Object[] {h, "second", 5, null, new Holder()};
        Map<Object, Object> m = new HashMap<>();
        for (int i = 0; i < 50; i++) {
            m.put("k" + i, i);
        }
        h.any = m;
        return h;
    }

    /** Positions of replicas, by what they are. */
    private static Map<Object, Long> positions;

    private static Path saved() {
        Path p = SavedPool.file();
        Holder h = graph();
        SavedPool.root = h;
        SavedPool.open(p);
        SavedPool.root(SavedPool.class, "root");
        positions = new HashMap<>();
        positions.put("holder", Replicas.position(Replicas.find(h)));
        positions.put("string", Replicas.position(Replicas.find(h.text)));
        positions.put("bytes", Replicas.position(Replicas.find(ClassInfos.of(h.text).fields.length == 0 ? h : value(h.text))));
        positions.put("array", Replicas.position(Replicas.find(h.all)));
        positions.put("numbers", Replicas.position(Replicas.find(h.numbers)));
        positions.put("enum", Replicas.position(Replicas.find(h.state)));
        positions.put("class", Replicas.position(Replicas.find(h.type)));
        positions.put("frontier", io.towa.medium.Nvm.getLong(Layout.FRONTIER));
        positions.put("field", positions.get("holder") + ClassInfos.of(h).nvm[0]);
        positions.put("root", Roots.all()[0].record.value());
        positions.put("coder", positions.get("string") + offsetOf(h.text, "coder"));
        DurableGraph.close();
        SavedPool.root = "untouched";
        return p;
    }

    private static Object value(String s) {
        ClassInfo c = ClassInfos.of(s);
        return jdk.internal.misc.Unsafe.getUnsafe().getReference(s, c.dram[0]);
    }

    private static int offsetOf(Object o, String field) {
        ClassInfo c = ClassInfos.of(o);
        for (int i = 0; i < c.fields.length; i++) {
            if (c.fields[i].getName().equals(field)) {
                return c.nvm[i];
            }
        }
        throw new AssertionError(field);
    }

    private static void put(Path p, long at, long v, int bytes) throws Exception {
        try (RandomAccessFile f = new RandomAccessFile(p.toFile(), "rw")) {
            f.seek(at);
            f.write(ByteBuffer.allocate(8).order(ByteOrder.LITTLE_ENDIAN).putLong(v).array(), 0, bytes);
        }
    }

    private static PoolException refused(Path p) throws Exception {
        byte[] before = EvolutionTest.content(p);
        SavedPool.root = "untouched";
        PoolException e = assertThrows(PoolException.class, () -> DurableGraph.open(p, io.towa.TowaOptions.DEFAULT, false));
        assertEquals("untouched", SavedPool.root);
        assertTrue(e.getMessage().contains(p.toString()), e.getMessage());
        assertTrue(e.getMessage().contains("restore the file") || e.reason() == PoolException.Reason.CHANGED_CLASS, e.getMessage());
        assertArrayEquals(before, EvolutionTest.content(p));
        return e;
    }

    @ParameterizedTest
    @CsvSource({"holder,0,4,0", "holder,0,4,-1", "holder,0,4,1000000", "holder,16,4,-5", "array,20,4,-1", "array,20,4,2147483647", "array,20,4,100000",
        "numbers,20,4,-2147483648", "numbers,20,4,1000000", "enum,20,4,-1", "enum,20,4,10000000", "enum,24,8,0", "class,20,4,10000000", "class,24,8,0", "root,0,8,8",
        "root,0,8,-16", "root,0,8,16", "root,0,8,9223372036854775792", "field,0,8,1", "field,0,8,4096", "field,0,8,-8", "field,0,8,70000000000", "coder,0,1,2",
        "coder,0,1,-1", "bytes,0,4,0"})
    void refusedInWords(String where, long offset, int bytes, long value) throws Exception {
        Path p = saved();
        put(p, positions.get(where) + offset, value, bytes);
        refused(p);
    }

    @Test
    void betweenBlocks() throws Exception {
        Path p = saved();
        put(p, positions.get("root"), positions.get("frontier") - 16, 8);
        refused(p);
        p = saved();
        put(p, positions.get("root"), positions.get("holder") + 16, 8);
        refused(p);
        p = saved();
        // A field of another type.
        put(p, positions.get("string") + ClassInfos.of("").nvm[0], positions.get("numbers"), 8);
        assertTrue(refused(p).getMessage().contains("java.lang.String.value"));
    }

    /** What recoveries of other builds left there means nothing. */
    @Test
    void aMarkThatNobodyMade() throws Exception {
        for (long number : new long[] {1, 2, 3, 4, (1L << 28) - 1}) {
            for (long index : new long[] {0, 1, 300, 1L << 35}) {
                Path p = saved();
                put(p, positions.get("string") + Layout.MARK, number << 36 | index, 8);
                SavedPool.root = "untouched";
                DurableGraph.open(p, io.towa.TowaOptions.DEFAULT, false);
                assertEquals("text", ((Holder) SavedPool.root).text);
                DurableGraph.close();
            }
        }
    }

    /** From where it was met already, and by a way that is looked at before it is. */
    @Test
    void intoTheMidstOfWhatWasMet() throws Exception {
        for (String where : new String[] {"holder", "array", "numbers", "string"}) {
            Path p = saved();
            put(p, positions.get("array") + Layout.DATA + 8, positions.get(where) + 16, 8);
            refused(p);
        }
    }

    @Test
    void theMarkNumber() throws Exception {
        for (long v : new long[] {0, -1, 1L << 28, Long.MAX_VALUE}) {
            Path p = saved();
            put(p, Layout.MARK_NUMBER, v, 8);
            assertTrue(assertThrows(PoolException.class, () -> DurableGraph.open(p, io.towa.TowaOptions.DEFAULT, false)).getMessage().contains("mark number"));
        }
    }

    private static int anywhere(Random random, long end) {
        return (int) random.nextLong(Layout.HEAP, end) & -8;
    }

    /** A copy with one word of the heap as it should not be. */
    static byte[] damaged(byte[] all, Random random) {
        byte[] bad = all.clone();
        int at = anywhere(random, all.length);
        for (int tries = 0; tries < 50 && ByteBuffer.wrap(bad, at, 8).getLong() == 0; tries++) {
            at = anywhere(random, all.length);
        }
        switch (random.nextInt(4)) {
            case 0:
                bad[at + random.nextInt(8)] ^= (byte) (1 << random.nextInt(8));
                break;
            case 1:
                ByteBuffer.wrap(bad).putLong(at, random.nextLong());
                break;
            case 2:
                ByteBuffer.wrap(bad).order(ByteOrder.LITTLE_ENDIAN).putLong(at, random.nextLong(Layout.HEAP, all.length) & -16);
                break;
            default:
                ByteBuffer.wrap(bad).putInt(at + 4 * random.nextInt(2), random.nextInt(5) - 2);
        }
        return bad;
    }

    /** Words of the used part, at random: some values are possible ones, all others are refused. */
    @Test
    void anything() throws Exception {
        Path good = saved();
        long end = positions.get("frontier");
        byte[] all = java.util.Arrays.copyOf(java.nio.file.Files.newInputStream(good).readNBytes((int) end), (int) end);
        Random random = new Random(7);
        int refused = 0;
        int accepted = 0;
        long last = Long.getLong("towa.damage.last", 3000);
        Path p = SavedPool.file();
        for (int i = 0; i < last; i++) {
            java.nio.file.Files.write(p, damaged(all, random));
            SavedPool.root = "untouched";
            try {
                DurableGraph.open(p, io.towa.TowaOptions.DEFAULT, false);
                accepted++;
                assertTrue(SavedPool.root == null || SavedPool.root != "untouched");
                DurableGraph.close();
            } catch (TowaException e) {
                refused++;
                assertEquals("untouched", SavedPool.root, "after " + e.getMessage());
            }
        }
        assertTrue(refused > last / 5 && accepted > last / 50, refused + " refused, " + accepted + " accepted");
    }
}
