package io.towa.graph;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNotNull;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertSame;
import static org.junit.jupiter.api.Assertions.assertTrue;

import demo.Shop;
import io.towa.Durability;
import io.towa.TowaOptions;
import io.towa.pool.Layout;
import io.towa.pool.Records;
import io.towa.pool.Superblock;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.Comparator;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.UUID;
import java.util.concurrent.TimeUnit;
import java.util.function.Function;
import java.util.stream.Collectors;
import java.util.stream.Stream;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.MethodSource;

/** The pools in tests/java-pool, which the other reader of the format has as well: read, opened, and written anew. */
class VectorsTest {
    private static final Path FOLDER = Path.of("../../tests/java-pool");

    @TempDir
    Path dir;

    @BeforeEach
    @AfterEach
    void forget() {
        DurableGraph.close();
        Shop.orders = null;
        Shop.codes = null;
        Shop.nothing = null;
        Shop.primes = null;
        Shop.history = null;
        Shop.first = null;
    }

    static List<String> names() throws Exception {
        try (Stream<Path> all = Files.list(FOLDER)) {
            List<String> names = all.map(p -> p.getFileName().toString()).filter(n -> n.endsWith(".towa")).map(n -> n.replace(".towa", "")).sorted().toList();
            assertTrue(names.containsAll(List.of("empty", "graph", "crashed")), names::toString);
            return names;
        }
    }

    private Path copy(String name) throws Exception {
        Path copy = dir.resolve(name + ".towa");
        Files.copy(FOLDER.resolve(name + ".towa"), copy, java.nio.file.StandardCopyOption.REPLACE_EXISTING);
        return copy;
    }

    private static String form(int form) {
        return List.of("object", "array", "enum constant", "class constant", "named constant").get(form);
    }

    /** The type of a field as a program spells it. */
    private static String type(String descriptor) {
        return java.lang.invoke.MethodType.fromMethodDescriptorString("()" + descriptor, null).returnType().getTypeName();
    }

    /** What the other reader's check says of it. */
    private static Map<String, Object> summary(PoolContents pool) {
        Superblock s = pool.superblock;
        Map<String, Object> all = new TreeMap<>();
        all.put("door", "java");
        all.put("version", (long) Layout.VERSION);
        all.put("uuid", new UUID(Long.reverseBytes(s.uuidHigh), Long.reverseBytes(s.uuidLow)).toString());
        all.put("created_unix_s", s.created);
        all.put("durability", s.durability == Durability.POWER ? "power" : "process");
        all.put("capacity", s.capacity);
        all.put("clean", s.clean);
        all.put("len", pool.fileBytes);
        all.put("used", pool.frontier);
        all.put("atomically_interrupted", pool.undo != 0);
        all.put("classes", (long) pool.classes.size());
        all.put("roots", pool.roots.stream().map(r -> new TreeMap<>(Map.<String, Object>of("name", r.className() + "." + r.field(), "type", type(r.descriptor()),
            "is_null", pool.rootIsNull.get(r.className() + "." + r.field())))).toList());
        List<PoolContents.Count> counts = new ArrayList<>(pool.counts.values());
        all.put("replicas", counts.stream().mapToLong(PoolContents.Count::replicas).sum());
        all.put("bytes", counts.stream().mapToLong(PoolContents.Count::bytes).sum());
        all.put("block_bytes", counts.stream().mapToLong(PoolContents.Count::blockBytes).sum());
        all.put("by_class", counts.stream().map(c -> new TreeMap<>(Map.<String, Object>of("index", (long) c.of().index(), "name", c.of().name(),
            "form", form(c.of().form()), "replicas", c.replicas(), "bytes", c.bytes(), "block_bytes", c.blockBytes())))
            .sorted(Comparator.comparing(c -> (Long) c.get("index"))).toList());
        all.put("problems", List.of());
        all.put("problems_found", 0L);
        return all;
    }

    @SuppressWarnings("unchecked")
    private static Map<String, Object> expected(String name) throws Exception {
        Map<String, Object> all = new TreeMap<>(Json.object(Files.readString(FOLDER.resolve(name + ".json"))));
        List<Map<String, Object>> classes = new ArrayList<>((List<Map<String, Object>>) all.get("by_class"));
        classes.sort(Comparator.comparing(c -> (Long) c.get("index")));
        all.put("by_class", classes);
        return all;
    }

    @ParameterizedTest
    @MethodSource("names")
    void isWhatItsSummarySays(String name) throws Exception {
        assertEquals(expected(name), summary(new PoolContents(copy(name))));
    }

    @ParameterizedTest
    @MethodSource("names")
    void isOpenedAndStaysWhatItIs(String name) throws Exception {
        List<String> before = new PoolContents(copy(name)).lines;
        Path file = copy(name);
        Durability durability = new PoolContents(copy(name)).superblock.durability;
        for (int i = 0; i < 2; i++) {
            DurableGraph.open(file, TowaOptions.DEFAULT.withDurability(durability), false);
            assertEquals(List.of(), Checker.check());
            assertEquals(before.size(), Replicas.size());
            DurableGraph.close();
        }
        PoolContents after = new PoolContents(file);
        assertTrue(after.superblock.clean);
        assertEquals(before.stream().map(VectorsTest::withoutCaches).toList(), after.lines.stream().map(VectorsTest::withoutCaches).toList());
    }

    /** Fields that are caches: the vectors describe them, as the format allows, and we leave them out. */
    private static String withoutCaches(String line) {
        return line.replaceAll("java\\.(lang\\.String\\.hash(IsZero)?|util\\.AbstractMap\\.(keySet|values)|util\\.HashMap\\.entrySet) [^,}]*=(0|null)(, |(?=}))", "");
    }

    /** The vector has a small number as larger ones are kept, by its field, which the format allows; we write it as what the JDK has one object of. */
    private static String numberByName(String line) {
        return line.replace("java.lang.Integer form 0 length 0 {java.lang.Integer.value I=3}", "constant form 4 length 19 {text=java.lang.Integer=3}");
    }

    @Test
    void graph() throws Exception {
        DurableGraph.open(copy("graph"), TowaOptions.DEFAULT, false);
        assertEquals(5, Shop.orders.size());
        assertEquals(3, Shop.orders.get("count"));
        assertSame(TimeUnit.SECONDS, Shop.orders.get("unit"));
        assertSame(String.class, Shop.orders.get("class"));
        assertSame(Collections.EMPTY_LIST, Shop.orders.get("list"));
        assertTrue(Shop.orders.containsKey("null"));
        assertNull(Shop.orders.get("null"));
        assertEquals(0x12345678, System.identityHashCode(Shop.orders));
        assertArrayEquals(new int[] {2, 3, 5, 7, 11}, Shop.codes);
        assertNull(Shop.nothing);
    }

    @Test
    void crashed() throws Exception {
        DurableGraph.open(copy("crashed"), TowaOptions.DEFAULT, false);
        assertEquals(1000, Shop.primes.length);
        assertEquals(7919, Shop.primes[999]);
        assertEquals(600, Shop.history.size());
        assertSame(Shop.history, Shop.history.get(0));
        for (int i = 1; i < 600; i++) {
            assertEquals("event " + i % 20, Shop.history.get(i));
            assertSame(Shop.history.get(i % 20 == 0 ? 20 : i % 20), Shop.history.get(i));
        }
        assertSame(Shop.first, Shop.history.get(20));
    }

    private static Map<String, Records.ClassRecord> classes(PoolContents pool) {
        Map<String, Records.ClassRecord> all = pool.classes.stream().collect(Collectors.toMap(Records.ClassRecord::name, Function.identity()));
        assertEquals(pool.classes.size(), all.size());
        return all;
    }

    @Test
    void graphWrittenAnew() throws Exception {
        Path file = dir.resolve("new.towa");
        Map<String, Object> orders = new HashMap<>();
        orders.put("count", 3);
        orders.put("unit", TimeUnit.SECONDS);
        orders.put("class", String.class);
        orders.put("list", Collections.EMPTY_LIST);
        orders.put("null", null);
        Shop.orders = orders;
        Shop.codes = new int[] {2, 3, 5, 7, 11};
        DurableGraph.open(file, TowaOptions.DEFAULT.withCapacity(1 << 30), false);
        for (String field : List.of("orders", "codes", "nothing")) {
            SavedPool.root(Shop.class, field);
        }
        DurableGraph.close();

        byte[] ours = Files.readAllBytes(file);
        byte[] theirs = Files.readAllBytes(FOLDER.resolve("graph.towa"));
        int ourSlot = newer(ours);
        int theirSlot = newer(theirs);
        // All but the identity, counters, and who opened the pool last and when: the process and its stamp.
        for (int[] fixed : new int[][] {{0, 16}, {40, 48}, {56, 76}, {88, 248}}) {
            assertArrayEquals(Arrays.copyOfRange(theirs, theirSlot + fixed[0], theirSlot + fixed[1]),
                Arrays.copyOfRange(ours, ourSlot + fixed[0], ourSlot + fixed[1]), "bytes " + fixed[0] + " to " + fixed[1] + " of the superblock");
        }
        PoolContents a = new PoolContents(copy("graph"));
        PoolContents b = new PoolContents(file);
        assertEquals(a.lines.stream().map(VectorsTest::withoutCaches).map(VectorsTest::numberByName).toList(), b.lines);
        assertEquals(a.rootIsNull, b.rootIsNull);
        for (int i = 0; i < a.roots.size(); i++) {
            assertEquals(a.roots.get(i).descriptor(), b.roots.get(i).descriptor());
            assertEquals(a.roots.get(i).bytes(), b.roots.get(i).bytes());
        }
        Map<String, Records.ClassRecord> ourClasses = classes(b);
        int same = 0;
        for (Records.ClassRecord c : classes(a).values()) {
            if (c.name().equals("java.lang.Integer")) {
                continue;
            }
            Records.ClassRecord o = ourClasses.get(c.form() == Layout.FORM_NAMED ? "constant" : c.name());
            assertNotNull(o, c.name());
            assertEquals(c.form(), o.form(), c.name());
            if (o.fields().size() == c.fields().size() && c.form() != Layout.FORM_NAMED) {
                // Nothing left out, and so to the byte: but for the order of classes, and of fields of one width.
                assertEquals(c.bytes(), o.bytes(), c.name());
                if (c.form() == Layout.FORM_OBJECT) {
                    // Whether the last field is padded is the writer's business.
                    assertEquals(c.instanceBytes() + 7 & -8, o.instanceBytes() + 7 & -8, c.name());
                }
                same++;
            }
        }
        assertEquals(ourClasses.size() - 3, same, "all but String, HashMap, and the constant's");
    }

    /** As the format allows, and as the vectors are; of these all are rewritten, for the caches that they describe. */
    @Test
    void savedWithoutIdentityHashes() throws Exception {
        Shop.codes = new int[] {2, 3};
        Shop.history = new ArrayList<>(List.of(1000, Collections.EMPTY_LIST));
        Path file = dir.resolve("new.towa");
        DurableGraph.open(file, TowaOptions.DEFAULT.withCapacity(1 << 20), false);
        SavedPool.root(Shop.class, "codes");
        SavedPool.root(Shop.class, "history");
        DurableGraph.close();
        PoolContents before = new PoolContents(file);
        byte[] image = Files.readAllBytes(file);
        java.nio.ByteBuffer b = java.nio.ByteBuffer.wrap(image).order(java.nio.ByteOrder.LITTLE_ENDIAN);
        for (long at : before.reached) {
            assertTrue(b.getInt((int) at + Layout.HASH) > 0);
            b.putInt((int) at + Layout.HASH, 0);
        }
        Files.write(file, image);
        DurableGraph.open(file, TowaOptions.DEFAULT, false);
        assertEquals(List.of(), Checker.check());
        assertArrayEquals(new int[] {2, 3}, Shop.codes);
        assertEquals(List.of(1000, List.of()), Shop.history);
        assertTrue(!Recovery.last().rewritten());
        DurableGraph.close();
        assertEquals(before.lines, new PoolContents(file).lines);
        b = java.nio.ByteBuffer.wrap(Files.readAllBytes(file)).order(java.nio.ByteOrder.LITTLE_ENDIAN);
        for (long at : before.reached) {
            assertTrue(b.getInt((int) at + Layout.HASH) > 0);
        }
    }

    /** Where the superblock is that counts. */
    private static int newer(byte[] image) {
        java.nio.ByteBuffer b = java.nio.ByteBuffer.wrap(image).order(java.nio.ByteOrder.LITTLE_ENDIAN);
        return b.getLong(32) > b.getLong(4096 + 32) ? 0 : 4096;
    }
}
