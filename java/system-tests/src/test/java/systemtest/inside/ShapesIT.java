package systemtest.inside;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNotSame;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.towa.DurableRoot;
import io.towa.Towa;
import io.towa.TowaOptions;
import java.lang.classfile.ClassFile;
import java.lang.constant.ClassDesc;
import java.lang.constant.ConstantDescs;
import java.lang.constant.MethodTypeDesc;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

/** Graphs of extreme shape: long chains, large arrays, many classes. */
class ShapesIT {
    @DurableRoot
    private static Object root;

    @TempDir
    Path folder;

    static final class Link {
        final int n;
        Link next;

        Link(int n, Link next) {
            this.n = n;
            this.next = next;
        }
    }

    @AfterEach
    void close() {
        Towa.close();
        root = null;
    }

    private void reopen(Path file) {
        Towa.close();
        root = null;
        Towa.open(file);
    }

    private static Link chain(int length) {
        Link first = null;
        for (int i = length; i > 0; i--) {
            first = new Link(i, first);
        }
        return first;
    }

    @Test
    void aChainOfAMillion() {
        Path file = folder.resolve("chain");
        Towa.open(file, TowaOptions.DEFAULT.withCapacity(1 << 30));
        root = chain(1_000_000);
        Pool.sound();
        reopen(file);
        int n = 0;
        for (Link l = (Link) root; l != null; l = l.next) {
            assertEquals(++n, l.n);
        }
        assertEquals(1_000_000, n);
        // And all of it goes, but for the last.
        root = new Link(1, null);
        Towa.collect();
        assertTrue(Towa.metrics().objects() < 100, () -> "" + Towa.metrics());
    }

    /** Nested in each other, so that no object is reached before the one that holds it. */
    @Test
    void listsInLists() {
        Path file = folder.resolve("lists");
        Towa.open(file, TowaOptions.DEFAULT.withCapacity(1 << 30));
        List<Object> inner = new ArrayList<>();
        for (int i = 0; i < 100_000; i++) {
            List<Object> outer = new ArrayList<>(1);
            outer.add(inner);
            inner = outer;
        }
        root = inner;
        reopen(file);
        int depth = 0;
        for (List<?> l = (List<?>) root; !l.isEmpty(); l = (List<?>) l.get(0)) {
            depth++;
        }
        assertEquals(100_000, depth);
    }

    /** Every class has barriers of its own: those of iterators, in their superclass within the collection, are on once one is durable, not with the collection. */
    @Test
    void iteratorsHalfWay() {
        Path file = folder.resolve("iterators");
        Towa.open(file, Pool.SMALL);
        Map<Integer, String> map = new HashMap<>(Map.of(1, "one", 2, "two", 3, "three"));
        List<Integer> list = new ArrayList<>(List.of(1, 2, 3));
        Iterator<?>[] all = {null, null};
        root = new Object[] {map, list, all};
        all[0] = map.keySet().iterator();
        all[1] = list.iterator();
        for (Iterator<?> i : all) {
            assertEquals(1, i.next());
            assertEquals(2, i.next());
            i.remove();
            Pool.sound();
        }
        reopen(file);
        Object[] now = (Object[]) root;
        for (Iterator<?> i : (Iterator<?>[]) now[2]) {
            assertEquals(3, i.next());
            assertFalse(i.hasNext());
        }
        assertEquals(Map.of(1, "one", 3, "three"), now[0]);
        assertEquals(List.of(1, 3), now[1]);
        Pool.sound();
    }

    /** What stores a constant null asks nothing before it. */
    @Test
    void nulls() {
        Path file = folder.resolve("nulls");
        Towa.open(file, Pool.SMALL);
        Link first = chain(3);
        Object[] array = {first, first.next};
        root = array;
        first.next.next = null;
        array[1] = null;
        Pool.sound();
        // Not constant: it depends on the way.
        array[0] = first.n > 1 ? null : new Link(4, first);
        Pool.sound();
        reopen(file);
        Object[] now = (Object[]) root;
        assertEquals(4, ((Link) now[0]).n);
        assertNull(((Link) now[0]).next.next.next);
        assertNull(now[1]);
    }

    /** Before anybody has seen an array stores to it have no barrier, whatever variables it is in. */
    @Test
    void arraysAreSeenOnceOthersMayHaveThem() {
        Path file = folder.resolve("seen");
        Towa.open(file, Pool.SMALL);
        Object[] from = {"copied", "in", "late"};
        Object[] array = new Object[6];
        Object[] alias = array;
        System.arraycopy(from, 0, alias, 0, 2);
        array[2] = "before";
        root = alias;
        array[3] = "after";
        alias[4] = new Link(5, null);
        System.arraycopy(from, 2, array, 5, 1);
        Pool.sound();
        int[] numbers = new int[2];
        Object holder = numbers;
        alias[0] = holder;
        numbers[1] = 7;
        Link first = new Link(8, null);
        Link[] links = new Link[] {first};
        handOver((Object[]) links);
        links[0] = null;
        links[0] = first;
        links[0].next = new Link(9, null);
        Pool.sound();
        reopen(file);
        Object[] now = (Object[]) root;
        assertEquals(7, ((int[]) now[0])[1]);
        assertEquals(9, ((Link[]) now[1])[0].next.n);
        assertEquals(List.of("before", "after"), List.of(now[2], now[3]));
        assertEquals("late", now[5]);
    }

    private static void handOver(Object[] array) {
        ((Object[]) root)[1] = array;
    }

    @Test
    void largeArrays() {
        Path file = folder.resolve("arrays");
        Towa.open(file, TowaOptions.DEFAULT.withCapacity(1 << 30));
        long[] longs = new long[12_000_000];
        for (int i = 0; i < longs.length; i += 1000) {
            longs[i] = i;
        }
        Object[] references = new Object[3_000_000];
        root = new Object[] {longs, references, new byte[0], new int[0][0], new Object[0]};
        longs[longs.length - 1] = 7;
        references[references.length - 1] = "last";
        java.util.Arrays.fill(longs, 5_000_000, 6_000_000, 9);
        Pool.sound();
        reopen(file);
        Object[] all = (Object[]) root;
        long[] now = (long[]) all[0];
        assertNotSame(longs, now);
        assertTrue(java.util.Arrays.equals(longs, now));
        assertEquals("last", ((Object[]) all[1])[2_999_999]);
        assertEquals(0, ((byte[]) all[2]).length);
        assertEquals(int[][].class, all[3].getClass());
    }

    /** Classes of a loader of their own, which the pool's second opening has to be given. */
    private static final class Generated extends ClassLoader {
        Generated() {
            super(ShapesIT.class.getClassLoader());
        }

        @Override
        protected Class<?> findClass(String name) throws ClassNotFoundException {
            if (!name.startsWith("generated.C")) {
                throw new ClassNotFoundException(name);
            }
            byte[] b = ClassFile.of().build(ClassDesc.of(name), c -> c.withFlags(ClassFile.ACC_PUBLIC)
                .withField("n", ConstantDescs.CD_int, ClassFile.ACC_PUBLIC)
                .withField("f" + name.substring(11), ConstantDescs.CD_long, ClassFile.ACC_PUBLIC)
                .withField("next", ConstantDescs.CD_Object, ClassFile.ACC_PUBLIC)
                .withMethodBody("<init>", ConstantDescs.MTD_void, ClassFile.ACC_PUBLIC,
                    m -> m.aload(0).invokespecial(ConstantDescs.CD_Object, "<init>", ConstantDescs.MTD_void).return_())
                .withMethodBody("set", MethodTypeDesc.of(ConstantDescs.CD_void, ConstantDescs.CD_int), ClassFile.ACC_PUBLIC,
                    m -> m.aload(0).iload(1).putfield(ClassDesc.of(name), "n", ConstantDescs.CD_int).return_()));
            return defineClass(name, b, 0, b.length);
        }
    }

    @Test
    void fiveHundredClasses() throws Exception {
        Path file = folder.resolve("classes");
        int n = 500;
        Generated loader = new Generated();
        Towa.open(file, TowaOptions.DEFAULT.withCapacity(64 << 20));
        Object[] all = new Object[n];
        root = all;
        for (int i = 0; i < n; i++) {
            Class<?> c = loader.loadClass("generated.C" + i);
            Object o = c.getConstructor().newInstance();
            // Some at once, most one by one: each store turns a barrier on.
            c.getField("next").set(o, i > 0 && i % 10 != 0 ? all[i - 1] : null);
            all[i] = o;
            c.getMethod("set", int.class).invoke(o, i);
        }
        Pool.sound();
        Towa.close();
        root = null;
        Towa.open(file, TowaOptions.DEFAULT.withLoader(new Generated()));
        Object[] now = (Object[]) root;
        for (int i = 0; i < n; i++) {
            assertEquals("generated.C" + i, now[i].getClass().getName());
            assertEquals(i, now[i].getClass().getField("n").getInt(now[i]));
        }
        Pool.sound();
    }
}
