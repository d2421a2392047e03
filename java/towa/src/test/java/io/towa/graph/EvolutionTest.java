package io.towa.graph;

import static io.towa.graph.Versions.get;
import static io.towa.graph.Versions.make;
import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNotNull;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertSame;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.towa.OnDemand;
import io.towa.PoolException;
import io.towa.PoolException.Reason;
import io.towa.TowaOptions;
import java.lang.reflect.Field;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;
import org.junit.jupiter.params.provider.ValueSource;

/** Classes change between two runs: what can follow does, the rest is refused and nothing has changed. */
class EvolutionTest {
    @TempDir
    Path dir;

    private Versions versions;

    @BeforeEach
    void none() {
        versions = new Versions(dir);
    }

    private ClassLoader classes(String source) throws Exception {
        return versions.classes(source);
    }

    private static TowaOptions with(ClassLoader l) {
        return TowaOptions.DEFAULT.withLoader(l);
    }

    /** An object of class P, saved in the old form and brought back in the new. */
    private Object evolve(String old, String now) throws Exception {
        Path p = SavedPool.save(make(classes(old), "P"));
        ClassLoader l = classes(now);
        Object o = SavedPool.load(p, with(l));
        assertTrue(Recovery.last().rewritten());
        // In the new form it is like any other.
        SavedPool.load(p, with(l));
        assertFalse(Recovery.last().rewritten());
        return o;
    }

    private PoolException refused(String old, String now, String... words) throws Exception {
        Path p = SavedPool.save(make(classes(old), "P"));
        byte[] before = content(p);
        SavedPool.second = "before";
        PoolException e = assertThrows(PoolException.class, () -> SavedPool.load(p, with(classes(now))));
        assertEquals(PoolException.Reason.CHANGED_CLASS, e.reason(), e.getMessage());
        for (String w : words) {
            assertTrue(e.getMessage().contains(w), e.getMessage());
        }
        assertTrue(e.getMessage().contains(p.toString()), e.getMessage());
        assertNull(SavedPool.root);
        assertArrayEquals(before, content(p));
        assertNotNull(SavedPool.load(p, with(classes(old))));
        return e;
    }

    /** The used part, without marks and their number. */
    static byte[] content(Path p) throws Exception {
        try (java.io.RandomAccessFile f = new java.io.RandomAccessFile(p.toFile(), "r")) {
            byte[] words = new byte[48];
            f.seek(8192);
            f.readFully(words);
            java.nio.ByteBuffer b = java.nio.ByteBuffer.wrap(words).order(java.nio.ByteOrder.LITTLE_ENDIAN);
            byte[] all = new byte[(int) b.getLong(0)];
            f.seek(0);
            f.readFully(all);
            java.util.Arrays.fill(all, 0, 8192, (byte) 0);
            java.util.Arrays.fill(all, 8200, 8208, (byte) 0);
            // Wherever a mark may be: bytes 8 to 16 of a block.
            for (int at = 65536 + 8; at < all.length; at += 16) {
                long v = java.nio.ByteBuffer.wrap(all, at, 8).order(java.nio.ByteOrder.LITTLE_ENDIAN).getLong();
                if (v >>> 36 >= 2 && v >>> 36 < 100) {
                    java.util.Arrays.fill(all, at, at + 8, (byte) 0);
                }
            }
            return all;
        }
    }

    @Test
    void fieldsAddedRemovedReordered() throws Exception {
        Object o = evolve("class P { int a = 5; String gone = \"g\"; long b = 7; String s = \"s\"; }",
            "class P { String s; long b; String added = \"initialiser\"; int a; int more = 3; }");
        assertEquals(5, get(o, "a"));
        assertEquals(7L, get(o, "b"));
        assertEquals("s", get(o, "s"));
        assertNull(get(o, "added"));
        assertEquals(0, get(o, "more"));
    }

    @Test
    void aClassThatOnlyARemovedFieldNeedsMayGo() throws Exception {
        Object o = evolve("class Gone { int x = 1; } class P { Gone g = new Gone(); int a = 5; }", "class P { int a; }");
        assertEquals(5, get(o, "a"));
    }

    @Test
    void fieldsMovedInTheHierarchy() throws Exception {
        Object o = evolve("class Q { int a = 5; } class P extends Q { String b = \"b\"; }",
            "class R { String b; } class Q extends R { } class P extends Q { int a; }");
        assertEquals(5, get(o, "a"));
        assertEquals("b", get(o, "b"));
    }

    @ParameterizedTest
    @CsvSource({"byte,-5,short", "byte,-5,int", "byte,-5,long", "byte,-5,float", "byte,-5,double", "short,-300,int", "short,-300,long",
        "short,-300,float", "short,-300,double", "char,65535,int", "char,65535,long", "char,65535,float", "char,65535,double", "int,-70000,long",
        "int,-2147483648,double", "float,-1.5f,double"})
    void widened(String from, String value, String to) throws Exception {
        Object o = evolve("class P { int first = 1; " + from + " v = (" + from + ") " + value + "; }", "class P { " + to + " v; int first; }");
        assertEquals(Double.parseDouble(value), ((Number) get(o, "v")).doubleValue());
        assertEquals(1, get(o, "first"));
    }

    @ParameterizedTest
    @CsvSource({"long,int", "int,short", "int,float", "long,double", "double,float", "int,char", "boolean,int", "int,boolean", "int,Integer", "Integer,int",
        "double,long", "char,short", "long,String"})
    void notWidened(String from, String to) throws Exception {
        refused("class P { " + from + " v; }", "class P { " + to + " v; }", "class P", "field v");
    }

    @Test
    void referenceTypes() throws Exception {
        Object o = evolve("class P { java.util.ArrayList<String> l = new java.util.ArrayList<>(); Object n = 5; }",
            "class P { java.util.List<String> l; Number n; int x; }");
        assertEquals(List.of(), get(o, "l"));
        assertEquals(5, get(o, "n"));
        refused("class P { Object l = \"text\"; }", "class P { Number l; }", "P.l", "java.lang.String", "java.lang.Number");
    }

    @Test
    void aWholeGraphFollows() throws Exception {
        ClassLoader old = classes("class P { int v; P next; Object[] all; } ");
        Object first = null;
        Object[] all = new Object[5000];
        for (int i = 0; i < all.length; i++) {
            Object o = make(old, "P");
            set(o, "v", i);
            set(o, "next", first);
            set(o, "all", all);
            all[i] = o;
            first = o;
        }
        Path p = SavedPool.save(first);
        ClassLoader now = classes("class P { Object[] all; P next; long v; String more; } ");
        Object o = SavedPool.load(p, with(now));
        Object[] back = (Object[]) get(o, "all");
        for (int i = back.length - 1; i >= 0; i--) {
            assertSame(back[i], o);
            assertEquals((long) i, get(o, "v"));
            assertSame(back, get(o, "all"));
            o = get(o, "next");
        }
        assertNull(o);
        // Back and forth: the blocks of the old graph are free, so the file stops growing.
        ClassLoader third = classes("class P { String more; Object[] all; P next; long v; } ");
        ClassLoader fourth = classes("class P { Object[] all; P next; long v; long w; } ");
        long size = 0;
        for (int i = 0; i < 20; i++) {
            SavedPool.load(p, with(i % 2 == 0 ? third : fourth));
            assertTrue(i % 2 == 0 && i > 0 || Recovery.last().rewritten());
            if (i == 10) {
                size = frontier(p);
            }
        }
        assertTrue(frontier(p) <= 4 * size, size + " " + frontier(p));
    }

    private static long frontier(Path p) throws Exception {
        return content(p).length;
    }

    private static Field root(ClassLoader l, String c) throws Exception {
        return root(l, c, "r");
    }

    private static Field root(ClassLoader l, String c, String field) throws Exception {
        Field f = l.loadClass(c).getDeclaredField(field);
        f.setAccessible(true);
        return f;
    }

    private static void set(Object o, String field, Object v) throws Exception {
        Field f = o.getClass().getDeclaredField(field);
        f.setAccessible(true);
        f.set(o, v);
    }

    @Test
    void renamedClasses() throws Exception {
        Path p = SavedPool.save(make(classes("enum E { A, B } class Q { int a = 5; } class P extends Q { Q[] qs = {new Q(), this}; Class<?> c = Q[].class; E e = E.B; }"), "P"));
        ClassLoader l = classes("package n; enum F { B, A } class S { int a; } class R extends S { S[] qs; Class<?> c; F e; }");
        assertThrows(PoolException.class, () -> SavedPool.load(p, with(l)));
        Map<String, String> names = Map.of("P", "n.R", "Q", "n.S", "E", "n.F");
        Object o = SavedPool.load(p, with(l).withRenamed(names));
        assertEquals("n.R", o.getClass().getName());
        Object[] qs = (Object[]) get(o, "qs");
        assertEquals("n.S", qs[0].getClass().getName());
        assertSame(o, qs[1]);
        assertEquals(5, get(qs[0], "a"));
        assertEquals("[Ln.S;", ((Class<?>) get(o, "c")).getName());
        assertEquals("B", get(o, "e").toString());
        assertEquals("n.F", get(o, "e").getClass().getName());
        // From now on they have their new names.
        assertEquals("n.R", SavedPool.load(p, with(l)).getClass().getName());
    }

    @Test
    void aRenamedRoot() throws Exception {
        ClassLoader old = classes("class A { static Object r = \"value\"; }");
        Path p = SavedPool.file();
        SavedPool.open(p);
        SavedPool.root(old.loadClass("A"), "r");
        DurableGraph.close();
        ClassLoader now = classes("class B { static Object r; }");
        PoolException e = assertThrows(PoolException.class, () -> SavedPool.load(p, with(now)));
        assertTrue(e.getMessage().contains("A#r (class A cannot be loaded"), e.getMessage());
        for (int i = 0; i < 3; i++) {
            root(now, "B").set(null, null);
            SavedPool.load(p, i < 2 ? with(now).withRenamed(Map.of("A", "B")) : with(now));
            assertEquals("value", root(now, "B").get(null));
        }
    }

    @Test
    void aRenamedRootField() throws Exception {
        ClassLoader old = classes("class A { static Object r = \"value\"; static Object q = \"other\"; }");
        Path p = SavedPool.file();
        SavedPool.open(p);
        SavedPool.root(old.loadClass("A"), "r");
        SavedPool.root(old.loadClass("A"), "q");
        DurableGraph.close();
        // One field gets the name of the other, which moves to another class.
        ClassLoader now = classes("class A { static Object q; } class B { static Object s; } class C { static Object t; }");
        Map<String, String> names = Map.of("A#r", "A#q", "A#q", "B#s");
        for (int i = 0; i < 3; i++) {
            root(now, "A", "q").set(null, null);
            root(now, "B", "s").set(null, null);
            if (i == 1) {
                // Once: at the second start it would take the value that has come there away again.
                refused(p, with(now).withRenamed(names), "A#q", "B#s");
                refused(p, with(now).withRenamed(Map.of("A#q", "C#t")), "A#q");
            }
            SavedPool.load(p, i == 0 ? with(now).withRenamed(names) : with(now));
            assertEquals("value", root(now, "A", "q").get(null));
            assertEquals("other", root(now, "B", "s").get(null));
        }
        for (Map<String, String> circle : List.of(Map.of("A#r", "A#r"), Map.of("A#r", "A#q", "A#q", "A#r"), Map.of("A#r", "A#q", "A#q", "B#s", "B#s", "A#r"))) {
            assertThrows(IllegalArgumentException.class, () -> with(now).withRenamed(circle), circle.toString());
        }
        for (Map.Entry<String, String> bad : Map.of("A#r", "A", "A", "A#r", "B", "", "C#r", "#r").entrySet()) {
            assertThrows(IllegalArgumentException.class, () -> with(now).withRenamed(Map.of(bad.getKey(), bad.getValue())), bad.toString());
        }
    }

    private static void refused(Path p, TowaOptions with, String... words) {
        PoolException e = assertThrows(PoolException.class, () -> SavedPool.load(p, with));
        assertEquals(Reason.CHANGED_CLASS, e.reason());
        for (String w : words) {
            assertTrue(e.getMessage().contains(w), e.getMessage());
        }
    }

    /** Whatever a mapping says, no value is lost by it: each refusal leaves the pool as it was. */
    @Test
    void mappingsOfRootsThatWouldLoseAValueAreRefused() throws Exception {
        String both = "class A { static Object r = \"one\"; static Object q = \"two\"; }";
        ClassLoader l = classes(both);
        Path p = SavedPool.file();
        SavedPool.open(p);
        SavedPool.root(l.loadClass("A"), "r");
        SavedPool.root(l.loadClass("A"), "q");
        DurableGraph.close();
        ClassLoader other = classes(both + " class B { static Object s; }");
        refused(p, with(other).withRenamed(Map.of("A#r", "B#s")), "maps to B#s durable root A#r", "the program has a root of that name");
        refused(p, with(other).withRenamed(Map.of("A#r", "B#s", "A#q", "B#s")), "A#r", "A#q", "B#s");
        refused(p, with(other).withRenamed(Map.of("A#r", "A#q")), "A#r", "A#q, which has a value of its own");
        refused(p, with(other).withRenamed(Map.of("A#r", "")), "does without durable root A#r");
        refused(p, with(classes("class A { }")), "A#r (", "A#q (");
        refused(p, with(classes("class B { }")).withRenamed(Map.of("A#r", "B#s", "A#q", "")), "B#s (as A#r is mapped");
        SavedPool.load(p, with(l));
        assertEquals(List.of("one", "two"), List.of(root(l, "A", "r").get(null), root(l, "A", "q").get(null)));
    }

    /** The record of a root that has no value is a place for another's, in whatever order the pool has them. */
    @Test
    void aRootMovesToTheRecordOfOneWithoutValue() throws Exception {
        for (String[] order : new String[][] {{"r", "q"}, {"q", "r"}}) {
            ClassLoader old = classes("class A { static Object r = \"value\"; static Object q; }");
            Path p = SavedPool.file();
            SavedPool.open(p);
            SavedPool.root(old.loadClass("A"), order[0]);
            SavedPool.root(old.loadClass("A"), order[1]);
            DurableGraph.close();
            ClassLoader now = classes("class A { static Object q; }");
            for (int i = 0; i < 3; i++) {
                root(now, "A", "q").set(null, null);
                SavedPool.load(p, i < 2 ? with(now).withRenamed(Map.of("A#r", "A#q")) : with(now));
                assertEquals("value", root(now, "A", "q").get(null));
            }
        }
    }

    @Test
    void aRootFieldThatIsGoneIsRefusedByNameOrKeepsItsValue() throws Exception {
        ClassLoader one = classes("class A { static Object r = new java.util.ArrayList<>(java.util.List.of(1, 2)); }");
        Path p = SavedPool.file();
        SavedPool.open(p);
        SavedPool.root(one.loadClass("A"), "r");
        DurableGraph.close();
        for (String gone : new String[] {"class A { }", "class A { static final Object r = null; }"}) {
            PoolException e = assertThrows(PoolException.class, () -> SavedPool.load(p, with(classes(gone))));
            assertTrue(e.reason() == Reason.CHANGED_CLASS && e.getMessage().contains("A#r"), e.getMessage());
        }
        SavedPool.load(p, with(classes("class A { }")).withRenamed(Map.of("A#r", "")));
        root(one, "A").set(null, null);
        SavedPool.load(p, with(one));
        assertEquals(List.of(1, 2), root(one, "A").get(null));
    }

    @Test
    void theInitialiserOfARootClassDoesNotWin() throws Exception {
        ClassLoader one = classes("class A { static Object r = \"initial\"; }");
        root(one, "A").set(null, "saved");
        Path p = SavedPool.file();
        SavedPool.open(p);
        SavedPool.root(one.loadClass("A"), "r");
        DurableGraph.close();
        ClassLoader again = classes("class A { static Object r = \"initial\"; }");
        SavedPool.load(p, with(again));
        assertEquals("saved", root(again, "A").get(null));
    }

    @Test
    void enumConstants() throws Exception {
        String use = " class P { E e = E.B; java.util.EnumMap<E, String> m = new java.util.EnumMap<>(java.util.Map.of(E.B, \"b\")); }";
        String use2 = " class P { E e; java.util.EnumMap<E, String> m; }";
        Path p = SavedPool.save(make(classes("enum E { A, B, C }" + use), "P"));
        Object o = SavedPool.load(p, with(classes("enum E { C, B { }, A }" + use2)));
        assertEquals("B", get(o, "e").toString());
        refused("enum E { A, B, C }" + use, "enum E { A, C }" + use2, "B of E");
    }

    @Test
    void refusals() throws Exception {
        refused("class P { Object o = new Q(); } class Q { int a; }", "class P { Object o; }", "class Q");
        refused("class P { Object o = new Q(); } class Q { int a; }", "class P { Object o; } abstract class Q { int a; }", "class Q", "abstract");
        refused("class P { Object o = new Q(); } class Q { int a; }", "class P { Object o; } interface Q { }", "class Q");
        refused("class P { Object o = new Q(); } class Q { int a; }", "class P { Object o; } class Q extends Thread { int a; }", "class Q");
        refused("class P { Object o = new Q(); } class Q { int a; }", "class P { Object o; } enum Q { X; int a; }", "class Q", "an enum constant");
        refused("class P { Object o = new Q(); } class Q { int a = 1; }",
            "class P { Object o; } class Q { int a = Integer.parseInt(\"0\"); static { if (true) throw new IllegalStateException(\"oops\"); } }", "class Q", "initialised");
    }

    /** What a pool names is no reason to run code: of a class without instances nothing runs; of others it runs in the thread that opens the pool, whichever meets them. */
    @Test
    void initialisersRunOfWhatIsMetAndInTheOpenersThread() throws Exception {
        int many = 64;
        StringBuilder source = new StringBuilder("class P { Object[] o; } class R { static { Ran.add(\"R\"); } } class Ran { static synchronized void add(String c) {"
            + " System.setProperty(\"towa.test.ran\", System.getProperty(\"towa.test.ran\", \"\") + c + \" in \" + Thread.currentThread().threadId() + \";\"); } }");
        for (int i = 0; i < many; i++) {
            source.append("class Q" + i + " { static { Ran.add(\"Q" + i + "\"); } }");
        }
        ClassLoader old = classes(source.toString());
        Object p = make(old, "P");
        Field o = p.getClass().getDeclaredField("o");
        o.setAccessible(true);
        Object[][] all = new Object[many][1000];
        for (int i = 0; i < many; i++) {
            // So much that others help; each class is met in another piece of the work.
            Arrays.setAll(all[i], k -> new int[] {k});
            all[i][999] = make(old, "Q" + i);
        }
        o.set(p, all);
        Path file = SavedPool.file();
        SavedPool.root = p;
        SavedPool.open(file);
        SavedPool.root(SavedPool.class, "root");
        SavedPool.second = make(old, "R");
        Roots.Root second = Roots.add(SavedPool.class, SavedPool.class.getDeclaredField("second"), true);
        Roots.mirror(second);
        SavedPool.second = null;
        Roots.mirror(second);
        DurableGraph.close();
        System.clearProperty("towa.test.ran");
        try {
            SavedPool.load(file, with(classes(source.toString())));
            String[] ran = System.getProperty("towa.test.ran", "").split(";");
            String here = " in " + Thread.currentThread().threadId();
            assertEquals(many, Arrays.stream(ran).distinct().filter(c -> c.startsWith("Q") && c.endsWith(here)).count(), Arrays.toString(ran));
            assertEquals(many, ran.length, Arrays.toString(ran));
        } finally {
            System.clearProperty("towa.test.ran");
        }
    }

    @ParameterizedTest
    @ValueSource(booleans = {false, true})
    void aCrashInTheMidstOfTheRewriteLeavesOldOrNew(boolean power) throws Exception {
        ClassLoader old = classes("class P { int v = 5; P next; }");
        ClassLoader now = classes("class P { P next; long v; String more; }");
        Path p = SavedPool.save(make(old, "P"));
        byte[] image = Files.readAllBytes(p.toFile().length() < 64 << 20 ? p : copyOfUsed(p));
        List<byte[]> states = new ArrayList<>();
        SavedPool.root = null;
        if (power) {
            CrashAt.withoutPower(image, () -> SavedPool.load(p, with(now)), states);
        } else {
            CrashAt.run(p, image, with(now), states);
        }
        assertTrue(states.size() > (power ? 5 : 20), "states " + states.size());
        for (int i = 0; i < states.size(); i++) {
            Path q = SavedPool.file();
            Files.write(q, states.get(i));
            int switched = 0;
            try {
                assertEquals(5, get(SavedPool.load(q, with(old)), "v"));
                assertEquals(0, switched);
            } catch (PoolException e) {
                // The new graph is there: the int has become a long.
                assertEquals(PoolException.Reason.CHANGED_CLASS, e.reason());
                switched = 1;
            }
            assertEquals(5L, get(SavedPool.load(q, with(now)), "v"));
            assertTrue(switched == 1 || Recovery.last().rewritten());
            Files.delete(q);
        }
    }

    /** It leaves the list for good before its block is used again, when the power goes as well. */
    @Test
    void theRecordOfAClassAsItWasIsUsedAgain() throws Exception {
        // Its record is of another size: the link to P's record will be in it, in no line that something else writes back.
        String other = "class Q { int b = 2; int c, d, e, f, g, h; }";
        ClassLoader old = classes("class P { int a = 1; } " + other);
        Path p = SavedPool.save(new Object[] {make(old, "P"), null, null});
        DurableGraph.open(p, with(old), false);
        DirectPool.set((Object[]) SavedPool.root, 1, make(old, "Q"));
        DurableGraph.close();
        ClassLoader now = classes("class P { long a; int c; } " + other);
        List<byte[]> states = new ArrayList<>();
        CrashAt.withoutPower(SavedPool.image(p), () -> {
            DurableGraph.open(p, with(now), false);
            assertTrue(Recovery.last().rewritten());
            Collector.collect();
            byte[][] all = new byte[150][];
            for (int i = 0; i < all.length; i++) {
                all[i] = new byte[i / 2 * 8];
                Arrays.fill(all[i], (byte) -1);
            }
            DirectPool.set((Object[]) SavedPool.root, 2, all);
            DurableGraph.close();
        }, states);
        Path q = SavedPool.file();
        for (byte[] s : states) {
            Files.write(q, s);
            Object[] all = (Object[]) SavedPool.load(q, with(now));
            assertEquals(1L, get(all[0], "a"));
            assertEquals(2, get(all[1], "b"));
        }
        Files.delete(q);
    }

    private static Path copyOfUsed(Path p) throws Exception {
        long used = frontier(p);
        Path q = SavedPool.file();
        try (java.io.RandomAccessFile f = new java.io.RandomAccessFile(p.toFile(), "r")) {
            byte[] all = new byte[(int) used];
            f.readFully(all);
            Files.write(q, all);
        }
        return q;
    }

    /** What lies behind OnDemands is brought back, too, to be written afresh; then nothing of the old form is left, and it can be left for later again. */
    @Test
    void changedClassesBringBackWhatIsLeftForLater() throws Exception {
        Path p = SavedPool.save(new Object[] {new OnDemand<>(make(classes("class P { int a = 1; }"), "P")), new OnDemand<>("text")});
        ClassLoader now = classes("class P { long a; int b; }");
        try (java.io.RandomAccessFile f = new java.io.RandomAccessFile(p.toFile(), "rw")) {
            f.seek(io.towa.pool.Layout.REHASH);
            f.write((int) io.towa.pool.Layout.STALE);
        }
        for (int round = 0; round < 2; round++) {
            SavedPool.root = null;
            DurableGraph.open(p, with(now), false);
            try {
                Object[] all = (Object[]) SavedPool.root;
                assertEquals(round == 0, Recovery.last().rewritten());
                assertFalse(Loads.rehash(), "all has been looked at");
                for (Object holder : all) {
                    assertEquals(round == 0, ((OnDemand<?>) holder).isLoaded());
                }
                assertEquals(1L, get(((OnDemand<?>) all[0]).get(), "a"));
                assertEquals("text", ((OnDemand<?>) all[1]).get());
                assertEquals(List.of(), Checker.check());
            } finally {
                DurableGraph.close();
            }
        }
        // What cannot be followed shows where an instance is met: the rest is there.
        for (String other : new String[] {"class P { String a; }", "class Q {}"}) {
            SavedPool.root = null;
            DurableGraph.open(p, with(classes(other)), false);
            try {
                Object[] all = (Object[]) SavedPool.root;
                PoolException e = assertThrows(PoolException.class, ((OnDemand<?>) all[0])::get);
                assertEquals(PoolException.Reason.CHANGED_CLASS, e.reason());
                assertTrue(e.getMessage().contains("class P"), e.getMessage());
                assertFalse(((OnDemand<?>) all[0]).isLoaded());
                assertEquals("text", ((OnDemand<?>) all[1]).get());
                Collector.collect();
            } finally {
                DurableGraph.close();
            }
        }
        DurableGraph.open(p, with(now), false);
        try {
            assertEquals(1L, get(((OnDemand<?>) ((Object[]) SavedPool.root)[0]).get(), "a"));
        } finally {
            DurableGraph.close();
        }
    }

    /** In another run, and there before its replica in the pool is loaded: hash tables that have it as a key, whenever they are loaded, are right. */
    @Test
    void aConstantHasItsHashFromItsName() throws Exception {
        String source = "enum P { A, B }";
        Object before = classes(source).loadClass("P").getEnumConstants()[1];
        Path p = SavedPool.save(new Object[] {new OnDemand<>(before), null});
        ClassLoader other = classes(source);
        DurableGraph.open(p, with(other), false);
        try {
            Object[] all = (Object[]) SavedPool.root;
            Object now = other.loadClass("P").getEnumConstants()[1];
            DirectPool.set(all, 1, now);
            assertEquals(System.identityHashCode(before), System.identityHashCode(now));
            assertSame(now, ((OnDemand<?>) all[0]).get());
            assertFalse(Loads.rehash());
            assertEquals(List.of(), Checker.check());
        } finally {
            DurableGraph.close();
        }
    }
}
