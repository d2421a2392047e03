package io.towa.graph;

import static io.towa.graph.Versions.get;
import static io.towa.graph.Versions.make;
import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.towa.PoolException;
import io.towa.TowaOptions;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.Map;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;

/** Tables of libraries, whose keys have other hash codes since their classes have changed: they find all of them, or are refused by name. */
public class LibraryTablesTest {
    @TempDir
    Path dir;

    private Versions versions;

    @BeforeEach
    void none() {
        versions = new Versions(dir);
    }

    /** A table of a library's: remembers the hash codes of its keys, and so finds a key itself where it does not find an equal one. */
    public static class Table extends java.util.AbstractMap<Object, Object> {
        final Object[] keys = new Object[16];
        final Object[] values = new Object[16];
        final int[] hashes = new int[16];
        int n;
        /** It cannot change any more. */
        public boolean fixed;
        /** Its values are primitive. */
        public boolean boxes;
        /** Its iterator asks for each key. */
        public boolean asks;

        /** Where a key is, or is to be; -1: nowhere, for it is full. */
        private int find(Object k) {
            int h = k.hashCode();
            for (int i = 0; i < 16; i++) {
                int at = h + i & 15;
                if (keys[at] == null || keys[at] == k || hashes[at] == h && keys[at].equals(k)) {
                    return at;
                }
            }
            return -1;
        }

        @Override
        public Object put(Object k, Object v) {
            int i = find(k);
            n += keys[i] == null ? 1 : 0;
            Object was = values[i];
            keys[i] = k;
            hashes[i] = k.hashCode();
            values[i] = boxes ? (Object) ((int) v - 1000) : v;
            return was;
        }

        @Override
        public Object get(Object k) {
            int i = find(k);
            return i < 0 ? null : values[i];
        }

        @Override
        public boolean containsKey(Object k) {
            int i = find(k);
            return i >= 0 && keys[i] != null;
        }

        @Override
        public void clear() {
            if (fixed) {
                throw new UnsupportedOperationException();
            }
            Arrays.fill(keys, null);
            Arrays.fill(values, null);
            n = 0;
        }

        @Override
        public int size() {
            return n;
        }

        @Override
        public java.util.Set<Entry<Object, Object>> entrySet() {
            java.util.Set<Entry<Object, Object>> all = new java.util.LinkedHashSet<>();
            for (int i = 0; i < keys.length; i++) {
                if (keys[i] != null && (!asks || get(keys[i]) != null)) {
                    all.add(Map.entry(keys[i], boxes ? (Object) Integer.valueOf((int) values[i] + 1000) : values[i]));
                }
            }
            return all;
        }
    }

    private static final String TABLE = "io.towa.graph.LibraryTablesTest.Table";

    private static final String BASE = "class B { int a; public int hashCode() { return mixed(); } int mixed() { return 3; } int own() { return a; }"
        + " public boolean equals(Object o) { return o instanceof B b && b.a == a; } } ";
    private static final String BASE_ANEW = "class B { int a; public int hashCode() { return mixed(); } int mixed() { return 3; } int own() { return 9 * a; }"
        + " public boolean equals(Object o) { return o instanceof B b && b.a == a; } } ";

    private static String tables(String record, String of) {
        return record + " class P { " + TABLE + " t = new " + TABLE + "(), inner = new " + TABLE + "(); { for (int i = 0; i < 14; i++) { t.put(" + of
            + ", i); inner.put(java.util.List.of(" + of + "), i); } for (int i = 14; i < 16; i++) inner.put(java.util.List.of(" + of + "), i); t.put(inner, 7); } int all() { int n = 0; for (int i = 0; i < 14; i++) {"
            + " if (Integer.valueOf(i).equals(t.get(" + of + "))) n++; if (Integer.valueOf(i).equals(inner.get(java.util.List.of(" + of + ")))) n++; }"
            + " return n + (t.containsKey(new java.util.HashMap<>(inner)) ? 1 : 0); } }";
    }

    private static Object call(Object o, String method) throws Exception {
        var m = o.getClass().getDeclaredMethod(method);
        m.setAccessible(true);
        return m.invoke(o);
    }

    /** Components that change places, and one more of them: other hash codes, also of lists and tables of such keys. */
    @ParameterizedTest
    @CsvSource(delimiter = '|', value = {
        "record K(int a, String b) { }|new K(i, \"k\" + i)|record K(String b, int a) { }|new K(\"k\" + i, i)",
        "record K(int a) { }|new K(i)|record K(int a, long more) { }|new K(i, 0)",
        "record K(int a) { public int hashCode() { return mixed(); } int mixed() { return a; } }|new K(i)"
            + "|record K(int a) { public int hashCode() { return mixed(); } int mixed() { return 7 * a; } }|new K(i)",
        "interface I { int a(); default int h() { return a(); } } record K(int a) implements I { public int hashCode() { return h(); } }|new K(i)"
            + "|interface I { int a(); default int h() { return 7 * a(); } } record K(int a) implements I { public int hashCode() { return h(); } }|new K(i)",
        "class K extends java.util.AbstractList<Integer> { int a; K(int i) { a = i; } public int size() { return 1; } public Integer get(int i) { return a; } }|new K(i)"
            + "|class K extends java.util.AbstractList<Integer> { int a; K(int i) { a = i; } public int size() { return 1; } public Integer get(int i) { return 7 * a; } }"
            + "|new K(i)",
        BASE + "class K extends B { K(int a) { this.a = a; } int mixed() { return a; } }|new K(i)"
            + "|" + BASE + "class K extends B { K(int a) { this.a = a; } int mixed() { return 7 * a; } }|new K(i)",
        BASE + "class K extends B { K(int a) { this.a = a; } public int hashCode() { return own() + 1; } int mixed() { return a; } }|new K(i)"
            + "|" + BASE_ANEW + "class K extends B { K(int a) { this.a = a; } public int hashCode() { return own() + 1; } int mixed() { return a; } }|new K(i)"})
    void tablesOfLibrariesAreMadeAnew(String old, String of, String now, String ofNow) throws Exception {
        Path p = SavedPool.save(make(versions.classes(tables(old, of)), "P"));
        ClassLoader l = versions.classes(tables(now, ofNow));
        for (int run = 0; run < 2; run++) {
            Object o = SavedPool.load(p, TowaOptions.DEFAULT.withLoader(l));
            assertEquals(29, call(o, "all"));
            assertEquals(run == 0, Recovery.last().rewritten());
        }
    }

    private void refused(String old, String now, String... words) throws Exception {
        Path p = SavedPool.save(make(versions.classes(old), "P"));
        byte[] before = EvolutionTest.content(p);
        PoolException e = assertThrows(PoolException.class, () -> SavedPool.load(p, TowaOptions.DEFAULT.withLoader(versions.classes(now))));
        assertEquals(PoolException.Reason.CHANGED_CLASS, e.reason(), e.getMessage());
        for (String w : words) {
            assertTrue(e.getMessage().contains(w), e.getMessage());
        }
        assertTrue(e.getMessage().contains(Table.class.getName()) && e.getMessage().contains("class K") && e.getMessage().contains(p.toString()), e.getMessage());
        assertArrayEquals(before, EvolutionTest.content(p));
    }

    @Test
    void whatCannotBeMadeAnewIsRefused() throws Exception {
        String fill = " class P { " + TABLE + " t = new " + TABLE + "(); { for (int i = 0; i < 9; i++) t.put(new K(i, i % 2), i); ";
        String now = "class P { " + TABLE + " t; }";
        // Another table of that pool can be made anew.
        refused("record K(int a, int b) { }" + fill + "} " + TABLE + " u = new " + TABLE + "(); { u.put(new K(1, 1), 1); } }",
            "record K(int b) { } class P { " + TABLE + " t, u; }", "two of its keys are equal now");
        String hash = "record K(int a, int b) { public int hashCode() { return a; } }";
        refused(hash + fill.replace("< 9", "< 4") + "t.fixed = true; } }", hash.replace("return a", "return a + 8") + now, "UnsupportedOperationException");
        refused(hash + fill + "t.asks = true; } }", hash.replace("return a", "return 31 * a + 5") + now, "it gives ");
    }

    /** Class files are not read while they are those that they were: another one is noticed in the same place, of the same size, with the old time. */
    @Test
    void aClassFileThatIsReplaced() throws Exception {
        String k = "class K { int a; K(int i) { a = i; } public int hashCode() { return 7 * a; } public boolean equals(Object o) { return o instanceof K k && k.a == a; } }";
        String p = " class P { java.util.Set<Object> s = new java.util.HashSet<>(java.util.Set.of(new K(5))); boolean has() { return s.contains(new K(5)); } }";
        ClassLoader old = versions.classes(k + p);
        ClassLoader now = versions.classes(k.replace("7 * a", "9 * a") + p);
        java.net.URL folder = ((java.net.URLClassLoader) old).getURLs()[0];
        Path pool = SavedPool.save(make(old, "P"));
        for (int run = 0; run < 2; run++) {
            assertEquals(true, call(SavedPool.load(pool, TowaOptions.DEFAULT.withLoader(new java.net.URLClassLoader(new java.net.URL[] {folder}))), "has"));
            assertFalse(Recovery.last().rewritten());
        }
        Path file = Path.of(folder.toURI()).resolve("K.class");
        Path other = Path.of(((java.net.URLClassLoader) now).getURLs()[0].toURI()).resolve("K.class");
        var time = java.nio.file.Files.getLastModifiedTime(file);
        assertEquals(java.nio.file.Files.size(file), java.nio.file.Files.size(other));
        java.nio.file.Files.write(file, java.nio.file.Files.readAllBytes(other));
        java.nio.file.Files.setLastModifiedTime(file, time);
        for (int run = 0; run < 2; run++) {
            assertEquals(true, call(SavedPool.load(pool, TowaOptions.DEFAULT.withLoader(new java.net.URLClassLoader(new java.net.URL[] {folder}))), "has"));
            assertEquals(run == 0, Recovery.last().rewritten());
        }
    }

    /** A hash code that asks for the fields by reflection has the same code, whatever they are. */
    @Test
    void fieldsThatReflectionFinds() throws Exception {
        String k = "; public int hashCode() { return reflectionHashCode(); } int reflectionHashCode() { int h = 3; try {"
            + " for (java.lang.reflect.Field f : K.class.getDeclaredFields()) h = 31 * h + (int) f.get(this); } catch (IllegalAccessException e) { throw new AssertionError(e); }"
            + " return h; } public boolean equals(Object o) { return o instanceof K k && k.a == a; } K(int i) { a = i; } }";
        Path p = SavedPool.save(make(versions.classes("class K { int a" + k + " class P { " + TABLE + " t = new " + TABLE
            + "(); { for (int i = 0; i < 9; i++) t.put(new K(i), i); } }"), "P"));
        String now = " class P { " + TABLE + " t; int n() { int n = 0; for (int i = 0; i < 9; i++) n += t.containsKey(new K(i)) ? 1 : 0; return n; } }";
        assertEquals(9, call(SavedPool.load(p, TowaOptions.DEFAULT.withLoader(versions.classes("class K { int a, more" + k + now))), "n"));
    }

    /** Each look at a primitive value gives another box. */
    @Test
    void valuesMayBeOtherObjectsEachTime() throws Exception {
        String old = "class P { " + TABLE + " t = new " + TABLE + "(); { t.boxes = true; for (int i = 0; i < 9; i++) t.put(new K(i, \"k\"), 2000 + i); } }";
        Path p = SavedPool.save(make(versions.classes("record K(int a, String b) { } " + old), "P"));
        String now = "class P { " + TABLE + " t; int n() { int n = 0; for (int i = 0; i < 9; i++) n += t.containsKey(new K(\"k\", i)) ? 1 : 0; return n; } }";
        Object o = SavedPool.load(p, TowaOptions.DEFAULT.withLoader(versions.classes("record K(String b, int a) { } " + now)));
        assertEquals(9, call(o, "n"));
        assertTrue(((Map<?, ?>) get(o, "t")).containsValue(2008));
    }

    /** One that cannot change, and finds its keys, is right. */
    @Test
    void whatFindsItsKeysMayBeAsItIs() throws Exception {
        String k = "record K(int a) { public int hashCode() { return a; } }";
        Path p = SavedPool.save(make(versions.classes(k + " class P { int n; " + TABLE + " t = new " + TABLE + "(); { t.put(new K(1), 5); t.fixed = true; } }"), "P"));
        Object o = SavedPool.load(p, TowaOptions.DEFAULT.withLoader(versions.classes(k + " class P { long n; " + TABLE + " t; Object v() { return t.get(new K(1)); } }")));
        assertTrue(Recovery.last().rewritten());
        assertEquals(5, call(o, "v"));
        assertEquals(1, ((Map<?, ?>) get(o, "t")).size());
    }
}
