package io.towa.graph;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertInstanceOf;
import static org.junit.jupiter.api.Assertions.assertNotSame;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertSame;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.math.BigDecimal;
import java.math.BigInteger;
import java.time.Duration;
import java.time.Instant;
import java.time.LocalDate;
import java.time.LocalDateTime;
import java.time.ZoneOffset;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.BitSet;
import java.util.Collections;
import java.util.EnumMap;
import java.util.EnumSet;
import java.util.HashMap;
import java.util.HashSet;
import java.util.IdentityHashMap;
import java.util.LinkedHashMap;
import java.util.LinkedHashSet;
import java.util.LinkedList;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.Objects;
import java.util.Optional;
import java.util.PriorityQueue;
import java.util.Set;
import java.util.TreeMap;
import java.util.TreeSet;
import java.util.UUID;
import java.util.Vector;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.ConcurrentSkipListMap;
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.atomic.LongAdder;
import org.junit.jupiter.api.Test;

/** What goes in comes out: every kind of object, by itself and in graphs. */
class RoundTripTest {
    static class Primitives {
        boolean z = true;
        byte b = -1;
        char c = 'ß';
        short s = -300;
        int i = 1 << 31;
        long j = Long.MIN_VALUE + 5;
        float f = 1.5f;
        double d = -0.0;
        final int fixed;
        private final Object self = this;
        transient int forgotten = 5;

        Primitives(int fixed) {
            this.fixed = fixed;
        }
    }

    static final class Below extends Primitives {
        int i = 77;
        String text = "below";

        Below() {
            super(9);
        }
    }

    record Point(int x, long y, String name) {}

    enum Colour {
        RED,
        GREEN {
            @Override
            int weight() {
                return 7;
            }
        };

        int weight() {
            return 1;
        }
    }

    static final class Link {
        Link next;
        int value;
    }

    @Test
    void everyPrimitiveField() {
        Below b = (Below) SavedPool.roundTrip(new Below());
        assertTrue(b.z);
        assertEquals(-1, b.b);
        assertEquals('ß', b.c);
        assertEquals(-300, b.s);
        assertEquals(1 << 31, ((Primitives) b).i);
        assertEquals(77, b.i);
        assertEquals(Long.MIN_VALUE + 5, b.j);
        assertEquals(1.5f, b.f);
        assertEquals(Double.doubleToRawLongBits(-0.0), Double.doubleToRawLongBits(b.d));
        assertEquals(9, b.fixed);
        assertSame(b, ((Primitives) b).self);
        assertEquals(0, b.forgotten);
        assertEquals("below", b.text);
    }

    @Test
    void arraysOfEveryType() {
        Object[] all = {new boolean[] {true, false, true}, new byte[] {1, -2}, new char[] {'a', 'ü'}, new short[] {1, -2, 3}, new int[] {1, -2},
            new long[] {1, Long.MIN_VALUE}, new float[] {1, Float.NaN}, new double[] {1, -0.0}, new String[] {"a", null, "c"},
            new Object[] {1, "x", null}, new int[][] {{1}, null, {2, 3}, {}}, new boolean[0], new byte[0], new char[0], new short[0], new int[0],
            new long[0], new float[0], new double[0], new Object[0], new Point[2], new long[100_000], new Object[5000]};
        ((long[]) all[21])[99_999] = 5;
        Object[] back = (Object[]) SavedPool.roundTrip(all);
        assertTrue(Arrays.deepEquals(all, back));
        for (int i = 0; i < all.length; i++) {
            assertSame(all[i].getClass(), back[i].getClass());
            assertNotSame(all[i], back[i]);
        }
    }

    @Test
    void nothing() {
        assertNull(SavedPool.roundTrip(null));
    }

    @Test
    void sharedAndCyclic() {
        Object[] a = new Object[3];
        Object[] b = {a, a};
        a[0] = b;
        a[1] = a;
        Object[] back = (Object[]) SavedPool.roundTrip(a);
        assertSame(back, back[1]);
        assertSame(back, ((Object[]) back[0])[0]);
        assertSame(back, ((Object[]) back[0])[1]);
        assertNull(back[2]);
    }

    @Test
    void aLongChainNeedsNoStack() {
        Link head = null;
        for (int i = 0; i < 1_000_000; i++) {
            Link l = new Link();
            l.next = head;
            l.value = i;
            head = l;
        }
        Link l = (Link) SavedPool.roundTrip(head);
        for (int i = 999_999; i >= 0; i--) {
            assertEquals(i, l.value);
            l = l.next;
        }
        assertNull(l);
    }

    @Test
    void aLargeArrayOfSharedObjects() {
        Object[] a = new Object[300_000];
        for (int i = 0; i < a.length; i++) {
            a[i] = i % 3 == 0 ? null : i % 3 == 1 ? a[i / 2] : new Point(i, -i, "n" + i);
        }
        Object[] back = (Object[]) SavedPool.roundTrip(a);
        assertArrayEquals(a, back);
        for (int i = 1; i < a.length; i += 3) {
            assertSame(back[i / 2], back[i]);
        }
    }

    @Test
    void identityHashIsKept() {
        Object key = new Link();
        Map<Object, String> byIdentity = new IdentityHashMap<>();
        byIdentity.put(key, "v");
        Map<Object, String> byDefaultHash = new HashMap<>();
        byDefaultHash.put(key, "w");
        int hash = System.identityHashCode(key);
        Object[] back = (Object[]) SavedPool.roundTrip(new Object[] {key, byIdentity, byDefaultHash});
        assertNotSame(key, back[0]);
        assertEquals(hash, System.identityHashCode(back[0]));
        assertEquals(hash, back[0].hashCode());
        assertEquals("v", ((Map<?, ?>) back[1]).get(back[0]));
        assertEquals("w", ((Map<?, ?>) back[2]).get(back[0]));
    }

    @Test
    void constantsAreTheOnesOfThisRun() {
        EnumMap<Colour, String> map = new EnumMap<>(Colour.class);
        map.put(Colour.GREEN, "g");
        Object[] a = {Colour.RED, Colour.GREEN, map, EnumSet.of(Colour.GREEN), String.class, int.class, Point[].class, EnumSet.noneOf(Colour.class)};
        Object[] back = (Object[]) SavedPool.roundTrip(a);
        assertSame(Colour.RED, back[0]);
        assertSame(Colour.GREEN, back[1]);
        assertEquals(7, ((Colour) back[1]).weight());
        assertArrayEquals(a, back);
        EnumMap<Colour, String> again = cast(back[2]);
        again.put(Colour.RED, "r");
        assertEquals(2, again.size());
    }

    @SuppressWarnings("unchecked")
    private static <T> T cast(Object o) {
        return (T) o;
    }

    @Test
    void values() {
        Object[] a = {"", "ascii", "Ünicode \u4e2d", 1, -1000, 5L, 'x', (byte) 3, (short) 4, 1.5f, 2.5d, true, new BigInteger("123456789012345678901234567890"),
            new BigDecimal("1.000000000000000000000000000001"), LocalDate.of(2026, 2, 28), LocalDateTime.of(2026, 1, 2, 3, 4), Duration.ofNanos(5),
            Instant.ofEpochSecond(5, 6), ZoneOffset.ofHours(3), new UUID(1, 2), Optional.of("x"), Optional.empty(), Locale.GERMANY, new Point(1, 2, "p"),
            BitSet.valueOf(new long[] {5, 0, 9}), new StringBuilder("sb").toString(), new java.util.Date(7)};
        assertArrayEquals(a, (Object[]) SavedPool.roundTrip(a));
        assertSame(Optional.empty(), SavedPool.roundTrip(Optional.empty()));
        assertEquals(7L, ((AtomicLong) SavedPool.roundTrip(new AtomicLong(7))).get());
        LongAdder adder = new LongAdder();
        adder.add(11);
        assertEquals(11L, ((LongAdder) SavedPool.roundTrip(adder)).sum());
    }

    @Test
    void immutableCollectionsOfEverySize() {
        for (int n = 0; n <= 20; n++) {
            List<Object> l = new ArrayList<>();
            Map<Object, Object> m = new HashMap<>();
            for (int i = 0; i < n; i++) {
                l.add("e" + i);
                m.put("k" + i, i);
            }
            Object[] a = {List.copyOf(l), Set.copyOf(l), Map.copyOf(m), Collections.unmodifiableList(l), Arrays.asList(l.toArray())};
            assertArrayEquals(a, (Object[]) SavedPool.roundTrip(a), "size " + n);
        }
    }

    @Test
    void collectionsWorkOn() {
        for (int n : new int[] {0, 1, 5, 100, 3000}) {
            List<Map<Object, Object>> maps = List.of(new HashMap<>(), new LinkedHashMap<>(), new TreeMap<>(), new ConcurrentHashMap<>(),
                new ConcurrentSkipListMap<>(), new java.util.Hashtable<>());
            for (Map<Object, Object> m : maps) {
                for (int i = 0; i < n; i++) {
                    m.put("k" + i, new Point(i, i, null));
                }
                Map<Object, Object> back = cast(SavedPool.roundTrip(m));
                assertSame(m.getClass(), back.getClass());
                assertEquals(m, back);
                for (int i = 0; i < 2 * n + 1; i++) {
                    back.put("k" + i, new Point(-i, i, null));
                }
                assertEquals(2 * n + 1, back.size());
                back.remove("k0");
                assertNull(back.get("k0"));
            }
            List<java.util.Collection<Object>> lists = List.of(new ArrayList<>(), new LinkedList<>(), new HashSet<>(), new LinkedHashSet<>(),
                new TreeSet<>(), new ArrayDeque<>(), new PriorityQueue<>(), new Vector<>(), new CopyOnWriteArrayList<>(), new ConcurrentLinkedQueue<>(),
                ConcurrentHashMap.newKeySet(), new java.util.concurrent.LinkedBlockingQueue<>(), new java.util.concurrent.LinkedBlockingDeque<>(),
                new java.util.concurrent.ArrayBlockingQueue<>(10_000), new java.util.concurrent.PriorityBlockingQueue<>());
            for (java.util.Collection<Object> c : lists) {
                for (int i = 0; i < n; i++) {
                    c.add("e" + i);
                }
                java.util.Collection<Object> back = cast(SavedPool.roundTrip(c));
                assertArrayEquals(c.toArray(), back.toArray(), c.getClass().getName());
                back.add("another");
                assertTrue(back.remove("another"));
                assertEquals(n, back.size());
            }
        }
    }

    @Test
    void aHashSetKnowsItsSentinel() {
        HashSet<String> set = new HashSet<>(Set.of("a"));
        HashSet<String> back = cast(SavedPool.roundTrip(set));
        assertTrue(back.remove("a"));
        assertTrue(back.add("a"));
    }

    @Test
    void severalRoots() {
        SavedPool.second = new Point(1, 2, "second");
        java.nio.file.Path p = SavedPool.file();
        SavedPool.root = SavedPool.second;
        SavedPool.open(p);
        SavedPool.root(SavedPool.class, "root");
        SavedPool.root(SavedPool.class, "second");
        DurableGraph.close();
        SavedPool.second = null;
        assertEquals(new Point(1, 2, "second"), SavedPool.load(p));
        assertSame(SavedPool.root, SavedPool.second);
        assertInstanceOf(Point.class, SavedPool.second);
        assertTrue(Objects.equals(SavedPool.root, SavedPool.load(p)));
    }

    @Test
    void manyTimes() {
        java.nio.file.Path p = SavedPool.save(new Point(5, 6, "x"));
        long size = p.toFile().length();
        for (int i = 0; i < 50; i++) {
            assertEquals(new Point(5, 6, "x"), SavedPool.load(p));
        }
        assertEquals(size, p.toFile().length());
    }

    /** The threads of a recovery meet the same objects at the same time, small ones and large: there is one of each. */
    @Test
    void whatAllReferToIsMadeOnce() {
        java.util.Random random = new java.util.Random(5);
        Object[] shared = new Object[1 << 12];
        for (int i = 0; i < shared.length; i++) {
            shared[i] = i % 16 == 0 ? new long[1000] : new Object[] {shared[random.nextInt(i)], "s" + i};
        }
        Object[][] all = new Object[64][1 << 12];
        for (Object[] some : all) {
            for (int i = 0; i < some.length; i++) {
                some[i] = shared[random.nextInt(shared.length)];
            }
        }
        java.nio.file.Path p = SavedPool.save(all);
        for (int i = 0; i < 5; i++) {
            // Which compares every reference with where its object's replica is.
            SavedPool.load(p);
        }
    }
}
