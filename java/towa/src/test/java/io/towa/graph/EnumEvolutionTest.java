package io.towa.graph;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.towa.PoolException;
import io.towa.TowaOptions;
import java.nio.file.Path;
import java.util.Collection;
import java.util.EnumMap;
import java.util.EnumSet;
import java.util.List;
import java.util.Map;
import java.util.TreeSet;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

/** An enum is reordered, grows, shrinks between two runs: what lies by ordinal follows it, or is refused by the name of the constant. */
class EnumEvolutionTest {
    private static final String FIELDS = "class P { java.util.EnumMap<E, String> map; java.util.EnumSet<E> set; E[] array; ";
    /** Holds the constants A and C in either way. */
    private static final String MADE = FIELDS + "P() { map = new java.util.EnumMap<>(E.class); set = java.util.EnumSet.of(E.A, E.C);"
        + " for (E e : set) map.put(e, e.name()); } }";

    @TempDir
    Path dir;

    private Versions versions;

    @BeforeEach
    void none() {
        versions = new Versions(dir);
    }

    private static String constants(int from, int to) {
        StringBuilder s = new StringBuilder();
        for (int i = from; i < to; i++) {
            s.append(", K").append(i);
        }
        return s.toString();
    }

    private Path save(String constants) throws Exception {
        return SavedPool.save(Versions.make(versions.classes("enum E { " + constants + " } " + MADE), "P"));
    }

    /** Brings the pool back twice, for the second time sees what the first has repaired; checks it with these constants, and adds others. */
    @SuppressWarnings({"unchecked", "rawtypes"})
    private void follows(Path p, String constants) throws Exception {
        ClassLoader l = versions.classes("enum E { " + constants + " } " + FIELDS + "}");
        Class e = Class.forName("E", true, l);
        for (int round = 0; round < 2; round++) {
            Object o = SavedPool.load(p, TowaOptions.DEFAULT.withLoader(l));
            EnumMap<?, String> map = (EnumMap) Versions.get(o, "map");
            EnumSet<?> set = (EnumSet) Versions.get(o, "set");
            assertEquals(new TreeSet<>(List.of(Enum.valueOf(e, "A"), Enum.valueOf(e, "C"))), new TreeSet(set));
            assertEquals(Map.of(Enum.valueOf(e, "A"), "A", Enum.valueOf(e, "C"), "C"), map);
            for (Object c : e.getEnumConstants()) {
                boolean has = ((Enum<?>) c).name().equals("A") || ((Enum<?>) c).name().equals("C");
                assertEquals(has, set.contains(c), c.toString());
                assertEquals(has ? c.toString() : null, map.get(c), c.toString());
            }
            EnumSet rest = EnumSet.allOf(e);
            rest.removeAll(set);
            assertEquals(new TreeSet(rest), new TreeSet(EnumSet.complementOf((EnumSet) set)));
            assertEquals(EnumSet.allOf(e), all(set, EnumSet.allOf(e)));
            for (Object c : e.getEnumConstants()) {
                ((EnumMap) map).put((Enum) c, "x");
            }
            assertEquals(EnumSet.allOf(e), map.keySet());
        }
    }

    @SuppressWarnings({"unchecked", "rawtypes"})
    private static Collection<?> all(EnumSet set, EnumSet more) {
        EnumSet copy = set.clone();
        copy.addAll(more);
        return copy;
    }

    @Test
    void reordered() throws Exception {
        follows(save("A, B, C"), "C, B, A");
    }

    @Test
    void grown() throws Exception {
        follows(save("A, B, C"), "D, A, B, C, E");
    }

    @Test
    void aConstantWithoutAnEntryMayGo() throws Exception {
        follows(save("A, B, C"), "A, C");
        follows(save("A, B, C"), "C, D, A");
    }

    @Test
    void largeEnumsToo() throws Exception {
        follows(save("A, B, C" + constants(0, 100)), "B" + constants(0, 80) + ", C" + constants(80, 140) + ", A");
        // One word of bits instead of two.
        follows(save("A, B, C" + constants(0, 100)), "C" + constants(20, 60) + ", A");
    }

    private PoolException refused(Path p, String now, String... words) throws Exception {
        ClassLoader l = versions.classes(now);
        PoolException e = assertThrows(PoolException.class, () -> SavedPool.load(p, TowaOptions.DEFAULT.withLoader(l)));
        assertEquals(PoolException.Reason.CHANGED_CLASS, e.reason(), e.getMessage());
        for (String w : words) {
            assertTrue(e.getMessage().contains(w), e.getMessage());
        }
        assertTrue(e.getMessage().contains(p.toString()), e.getMessage());
        assertNull(SavedPool.root);
        return e;
    }

    @Test
    void aConstantWithAnEntryIsMissed() throws Exception {
        String map = "class P { java.util.EnumMap<E, String> map; ";
        String set = "class P { java.util.EnumSet<E> set; ";
        Path p = SavedPool.save(Versions.make(versions.classes("enum E { A, B, C } " + map + "{ map = new java.util.EnumMap<>(java.util.Map.of(E.B, \"\")); } }"), "P"));
        refused(p, "enum E { A, C } " + map + "}", "EnumMap", "B of E");
        p = SavedPool.save(Versions.make(versions.classes("enum E { A, B, C } " + set + "{ set = java.util.EnumSet.of(E.A, E.B); } }"), "P"));
        refused(p, "enum E { C, A } " + set + "}", "EnumSet", "B of E");
        String many = "enum E { A, B, C" + constants(0, 100) + " } ";
        p = SavedPool.save(Versions.make(versions.classes(many + set + "{ set = java.util.EnumSet.of(E.K90); } }"), "P"));
        refused(p, "enum E { A, B, C } " + set + "}", "EnumSet", "K90 of E");
    }

    @Test
    void inAnArrayOfTheProgramEachConstantIsData() throws Exception {
        Path p = SavedPool.save(Versions.make(versions.classes("enum E { A, B, C } " + FIELDS + "{ array = E.values(); } }"), "P"));
        refused(p, "enum E { A, C } " + FIELDS + "}", "E[]", "B of E");
    }

    @Test
    void aSetCannotGrowBeyondItsKind() throws Exception {
        Path p = save("A, B, C");
        refused(p, "enum E { A, B, C" + constants(0, 62) + " } " + FIELDS + "}", "64", "EnumSet", "E");
        follows(p, "A, B, C" + constants(0, 61));
    }
}
