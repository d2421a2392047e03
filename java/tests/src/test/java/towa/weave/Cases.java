package towa.weave;

import java.io.ByteArrayInputStream;
import java.io.FileInputStream;
import java.io.RandomAccessFile;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.lang.invoke.MethodHandle;
import java.lang.invoke.MethodHandles;
import java.lang.invoke.VarHandle;
import java.lang.reflect.Array;
import java.lang.reflect.Field;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.util.*;
import java.util.concurrent.*;
import java.util.concurrent.atomic.*;
import java.util.zip.Deflater;
import java.util.zip.Inflater;

/** Every way to write that is known: the object written to, and an action each call of which writes to it. */
final class Cases {
    interface Action { void run(int i) throws Throwable; }
    record Case(String name, Object target, Action action) {}

    static class Plain {
        boolean z; byte b; short s; char c; int i; long j; float f; double d; Object r; String str;
        volatile boolean vz; volatile byte vb; volatile short vs; volatile char vc; volatile int vi; volatile long vj;
        volatile float vf; volatile double vd; volatile Object vr;
        Plain() { i = 1; }
    }
    static class Sub extends Plain { int own; }
    static class Alone { volatile int vi; }

    private static final MethodHandles.Lookup L = MethodHandles.lookup();
    private static final List<Case> ALL = new ArrayList<>();
    private static final Object[] TWO = {"a", "b"};
    private static final MethodHandle CONSTANT;
    static {
        try { CONSTANT = L.findSetter(Plain.class, "i", int.class); } catch (Exception e) { throw new Error(e); }
    }

    private static void add(String name, Object target, Action a) { ALL.add(new Case(name, target, a)); }

    static synchronized List<Case> all() throws Exception {
        if (ALL.isEmpty()) {
            fields(); volatiles(); arrays(); reflection(); handles(); atomics(); buffers(); natives(); strings(); collections(); unsafe();
        }
        return ALL;
    }

    private static void fields() {
        Plain p = new Plain();
        add("z", p, i -> p.z = (i & 1) == 0); add("b", p, i -> p.b = (byte) i); add("s", p, i -> p.s = (short) i);
        add("c", p, i -> p.c = (char) i); add("i", p, i -> p.i = i); add("j", p, i -> p.j = i); add("f", p, i -> p.f = i);
        add("d", p, i -> p.d = i); add("r", p, i -> p.r = TWO[i & 1]); add("r null", p, i -> p.r = null); add("i++", p, i -> p.i++);
        add("j +=", p, i -> p.j += i); add("assigned twice", p, i -> p.i = p.s = (short) i);
        Sub s = new Sub();
        add("field of a superclass", s, i -> s.i = i); add("own field of a subclass", s, i -> s.own = i);
        add("by the superclass", s, i -> ((Plain) s).j = i);
    }

    private static void volatiles() {
        Plain p = new Plain();
        add("volatile z", p, i -> p.vz = (i & 1) == 0); add("volatile b", p, i -> p.vb = (byte) i);
        add("volatile s", p, i -> p.vs = (short) i); add("volatile c", p, i -> p.vc = (char) i); add("volatile i", p, i -> p.vi = i);
        add("volatile j", p, i -> p.vj = i); add("volatile f", p, i -> p.vf = i); add("volatile d", p, i -> p.vd = i);
        add("volatile r", p, i -> p.vr = TWO[i & 1]); add("volatile j += ", p, i -> p.vj += i);
        Sub s = new Sub();
        add("volatile field of a superclass", s, i -> s.vd = i);
    }

    private static void arrays() {
        boolean[] z = new boolean[8]; byte[] b = new byte[64]; short[] s = new short[8]; char[] c = new char[64]; int[] n = new int[64];
        long[] j = new long[8]; float[] f = new float[8]; double[] d = new double[64]; Object[] r = new Object[8]; int[][] m = new int[4][4];
        add("boolean[]", z, i -> z[i & 7] = true); add("byte[]", b, i -> b[i & 7] = (byte) i); add("short[]", s, i -> s[i & 7] = (short) i);
        add("char[]", c, i -> c[i & 7] = (char) i); add("int[]", n, i -> n[i & 7] += i); add("long[]", j, i -> j[i & 7] = i);
        add("float[]", f, i -> f[i & 7] = i); add("double[]", d, i -> d[i & 7] = i); add("Object[]", r, i -> r[i & 7] = TWO[i & 1]);
        add("int[][]", m, i -> m[i & 3] = n); int[] inner = new int[4];
        int[][] outer = {inner, inner};
        add("int[][] inner", inner, i -> outer[i & 1][i & 3] = i);
        add("arraycopy Object[]", r, i -> System.arraycopy(TWO, 0, r, i & 3, 2));
        add("arraycopy int[]", n, i -> System.arraycopy(n, 0, n, 1, 4)); add("fill Object[]", r, i -> Arrays.fill(r, TWO[i & 1]));
        add("fill int[]", n, i -> Arrays.fill(n, i)); add("setAll", n, i -> Arrays.setAll(n, k -> k));
        add("sort int[]", n, i -> { n[0] = 9; Arrays.sort(n); });
        int[] big = new int[3000];
        add("sort large int[]", big, new Action() {
            public void run(int i) {
                big[0] = 1;
                big[1] = 0;
                long before = io.towa.graph.Stores.writes;
                if ((i & 255) == 0) Arrays.sort(big); else Arrays.sort(big, 0, 100);
                if (io.towa.graph.Stores.writes == before) io.towa.graph.Stores.writes = before - 1;
            }
        });
        Integer[] boxed = {3, 2, 1, 9, 8};
        add("sort Object[]", boxed, i -> { boxed[0] = 7; Arrays.sort(boxed); });
        add("Collections.shuffle", boxed, i -> Collections.shuffle(Arrays.asList(boxed)));
        add("Random.nextBytes", b, i -> new Random(i).nextBytes(b));
        add("String.getChars", c, i -> "hello".getChars(0, 5, c, 0)); add("getChars utf16", c, i -> "h\u4e00llo".getChars(0, 5, c, 0));
        add("List.toArray(T[])", r, i -> List.of("x", "y").toArray(r));
    }

    private static void reflection() throws Exception {
        Plain p = new Plain();
        String[] names = {"z", "b", "s", "c", "i", "j", "f", "d", "r", "vi", "vr", "vd"};
        Object[] values = {true, (byte) 1, (short) 1, 'c', 1, 1L, 1f, 1d, "r", 1, "vr", 1d};
        for (int k = 0; k < names.length; k++) {
            Field f = Plain.class.getDeclaredField(names[k]);
            Object v = values[k];
            f.setAccessible(true);
            add("Field.set " + names[k], p, i -> f.set(p, v));
            MethodHandle setter = L.unreflectSetter(f);
            add("MethodHandle setter " + names[k], p, i -> setter.invoke(p, v));
            MethodHandle bound = setter.bindTo(p);
            add("MethodHandle bound " + names[k], p, i -> bound.invoke(v));
        }
        Field fi = Plain.class.getDeclaredField("i");
        add("Field.setInt", p, i -> fi.setInt(p, i));
        add("constant MethodHandle", p, i -> { CONSTANT.invokeExact(p, i); });
        int[] n = new int[4]; byte[] b = new byte[4]; Object[] r = new Object[4]; double[] d = new double[4];
        add("Array.set", r, i -> Array.set(r, i & 3, "s")); add("Array.set int[]", n, i -> Array.set(n, i & 3, i));
        add("Array.setInt", n, i -> Array.setInt(n, i & 3, i)); add("Array.setByte", b, i -> Array.setByte(b, i & 3, (byte) i));
        add("Array.setDouble", d, i -> Array.setDouble(d, i & 3, i));
    }

    private static void handles() throws Exception {
        Plain p = new Plain();
        VarHandle r = L.findVarHandle(Plain.class, "vr", Object.class), n = L.findVarHandle(Plain.class, "vi", int.class);
        VarHandle j = L.findVarHandle(Plain.class, "vj", long.class), d = L.findVarHandle(Plain.class, "vd", double.class);
        VarHandle b = L.findVarHandle(Plain.class, "vb", byte.class), z = L.findVarHandle(Plain.class, "vz", boolean.class);
        add("VarHandle.set", p, i -> r.set(p, TWO[i & 1])); add("VarHandle.setVolatile", p, i -> r.setVolatile(p, TWO[i & 1]));
        add("VarHandle.setRelease", p, i -> r.setRelease(p, TWO[i & 1])); add("VarHandle.setOpaque", p, i -> r.setOpaque(p, TWO[i & 1]));
        add("VarHandle.compareAndSet", p, i -> r.compareAndSet(p, r.get(p), TWO[i & 1]));
        add("VarHandle.getAndSet", p, i -> { Object o = r.getAndSet(p, TWO[i & 1]); });
        add("VarHandle.weakCompareAndSet", p, i -> r.weakCompareAndSetRelease(p, r.get(p), TWO[i & 1]));
        add("VarHandle.compareAndExchange", p, i -> { Object o = r.compareAndExchangeAcquire(p, r.get(p), TWO[i & 1]); });
        add("int setRelease", p, i -> n.setRelease(p, i)); add("int setOpaque", p, i -> n.setOpaque(p, i));
        add("int getAndAdd", p, i -> { int o = (int) n.getAndAddAcquire(p, 1); });
        add("int getAndBitwiseXor", p, i -> { int o = (int) n.getAndBitwiseXorRelease(p, 1); });
        add("long getAndSet", p, i -> { long o = (long) j.getAndSet(p, 1L); }); add("double getAndAdd", p, i -> { double o = (double) d.getAndAdd(p, 1d); });
        add("double compareAndSet", p, i -> d.compareAndSet(p, (double) d.get(p), (double) i));
        add("byte getAndBitwiseOr", p, i -> { byte o = (byte) b.getAndBitwiseOr(p, (byte) 1); });
        add("boolean compareAndSet", p, i -> z.compareAndSet(p, (boolean) z.get(p), (i & 1) == 0));
        Object[] a = new Object[4]; long[] ja = new long[4]; byte[] ba = new byte[64];
        VarHandle av = MethodHandles.arrayElementVarHandle(Object[].class), jv = MethodHandles.arrayElementVarHandle(long[].class);
        add("array VarHandle.setVolatile", a, i -> av.setVolatile(a, i & 3, (Object) "o"));
        add("array VarHandle.compareAndSet", ja, i -> jv.compareAndSet(ja, 0, (long) jv.get(ja, 0), (long) i));
        MethodHandle as = MethodHandles.arrayElementSetter(Object[].class), is = MethodHandles.arrayElementSetter(long[].class);
        add("array setter", a, i -> as.invoke(a, i & 3, (Object) "s")); add("long array setter", ja, i -> is.invoke(ja, i & 3, (long) i));
        VarHandle view = MethodHandles.byteArrayViewVarHandle(long[].class, ByteOrder.LITTLE_ENDIAN);
        VarHandle big = MethodHandles.byteArrayViewVarHandle(int[].class, ByteOrder.BIG_ENDIAN);
        add("byte view long", ba, i -> view.set(ba, 8, (long) i)); add("byte view int, swapped", ba, i -> big.set(ba, 3, i));
    }

    private static void atomics() throws Exception {
        AtomicInteger ai = new AtomicInteger(); AtomicLong al = new AtomicLong(); AtomicBoolean ab = new AtomicBoolean();
        AtomicReference<Object> ar = new AtomicReference<>(); AtomicIntegerArray aia = new AtomicIntegerArray(4); LongAdder la = new LongAdder();
        add("AtomicInteger.incrementAndGet", ai, i -> ai.incrementAndGet()); add("AtomicInteger.set", ai, i -> ai.set(i));
        add("AtomicInteger.lazySet", ai, i -> ai.lazySet(i)); add("AtomicInteger.updateAndGet", ai, i -> ai.updateAndGet(x -> x + 1));
        add("AtomicLong.addAndGet", al, i -> al.addAndGet(3)); add("AtomicLong.getAndSet", al, i -> al.getAndSet(i));
        add("AtomicBoolean.compareAndSet", ab, i -> ab.compareAndSet(ab.get(), (i & 1) == 0));
        add("AtomicReference.set", ar, i -> ar.set("x")); add("AtomicReference.compareAndSet", ar, i -> ar.compareAndSet(ar.get(), TWO[i & 1]));
        add("AtomicReference.getAndSet", ar, i -> ar.getAndSet(TWO[i & 1])); add("LongAdder.add", la, i -> la.add(3));
        add("AtomicIntegerArray", get(AtomicIntegerArray.class, "array", aia), i -> aia.incrementAndGet(i & 3));
        Plain p = new Plain();
        var ru = AtomicReferenceFieldUpdater.newUpdater(Plain.class, Object.class, "vr");
        var iu = AtomicIntegerFieldUpdater.newUpdater(Plain.class, "vi");
        var ju = AtomicLongFieldUpdater.newUpdater(Plain.class, "vj");
        add("AtomicReferenceFieldUpdater", p, i -> ru.set(p, "q")); add("AtomicIntegerFieldUpdater", p, i -> iu.incrementAndGet(p));
        add("AtomicLongFieldUpdater", p, i -> ju.getAndAdd(p, 2));
        Random rnd = new Random(1);
        add("Random.nextInt (seed)", get(Random.class, "seed", rnd), i -> rnd.nextInt());
    }

    private static void buffers() {
        byte[] b = new byte[64]; int[] n = new int[16];
        ByteBuffer bb = ByteBuffer.wrap(b);
        add("ByteBuffer.putLong", b, i -> bb.putLong(0, i)); add("ByteBuffer.put", b, i -> bb.put(i & 31, (byte) i));
        add("ByteBuffer.put bulk", b, i -> { bb.clear(); bb.put(new byte[8]); }); add("asIntBuffer", b, i -> bb.asIntBuffer().put(1, i));
        add("direct to heap", b, new Action() {
            final ByteBuffer direct = ByteBuffer.allocateDirect(8);
            public void run(int i) { direct.clear(); direct.get(b, 0, 8); }
        });
        add("MemorySegment.set", b, i -> MemorySegment.ofArray(b).set(ValueLayout.JAVA_BYTE, 0, (byte) i));
        add("MemorySegment long", b, i -> MemorySegment.ofArray(b).set(ValueLayout.JAVA_LONG_UNALIGNED, 3, i));
        add("MemorySegment.fill", n, i -> MemorySegment.ofArray(n).fill((byte) i));
        add("MemorySegment.copy", n, i -> MemorySegment.copy(MemorySegment.ofArray(new int[4]), 0, MemorySegment.ofArray(n), 0, 16));
        add("MemorySegment.asByteBuffer", b, i -> MemorySegment.ofArray(b).asByteBuffer().putInt(0, i));
    }

    private static void natives() throws Exception {
        byte[] b = new byte[64], zip = new byte[50], src = {1, 2, 3};
        FileInputStream zero = new FileInputStream("/dev/zero");
        RandomAccessFile raf = new RandomAccessFile("/dev/zero", "r");
        add("FileInputStream.read", b, i -> zero.read(b, 4, 8)); add("RandomAccessFile.read", b, i -> raf.read(b));
        add("ByteArrayInputStream.read", b, i -> new ByteArrayInputStream(src).read(b));
        Deflater def = new Deflater();
        int n;
        def.setInput(src); def.finish(); n = def.deflate(zip);
        Inflater inf = new Inflater();
        add("Inflater.inflate", b, i -> { inf.reset(); inf.setInput(zip, 0, n); inf.inflate(b); });
        add("Deflater.deflate", b, i -> { def.reset(); def.setInput(src); def.finish(); def.deflate(b); });
        byte[] text = "hello world, hello world!".getBytes(), coded = Base64.getEncoder().encode(text);
        add("Base64 encode", b, i -> Base64.getEncoder().encode(text, b)); add("Base64 decode", b, i -> Base64.getDecoder().decode(coded, b));
    }

    private static void strings() throws Exception {
        byte[] b = new byte[64]; char[] c = new char[64];
        var latin = java.nio.charset.StandardCharsets.ISO_8859_1.newEncoder();
        var utf8 = java.nio.charset.StandardCharsets.UTF_8.newEncoder(); var dec = java.nio.charset.StandardCharsets.UTF_8.newDecoder();
        add("ISO_8859_1 encoder", b, i -> latin.encode(java.nio.CharBuffer.wrap("abcdefghij"), ByteBuffer.wrap(b), true));
        add("UTF_8 encoder", b, i -> utf8.encode(java.nio.CharBuffer.wrap("abcdefghij".toCharArray()), ByteBuffer.wrap(b), true));
        add("UTF_8 decoder", c, i -> dec.decode(ByteBuffer.wrap(new byte[] {65, 66, 67}), java.nio.CharBuffer.wrap(c), true));
        StringBuilder sb = new StringBuilder(64), wide = new StringBuilder(64).append('\u4e00');
        add("StringBuilder.append(String) value", value(sb), i -> { sb.setLength(0); sb.append("hello"); });
        add("StringBuilder.append(int) value", value(sb), i -> { sb.setLength(0); sb.append(12345); });
        add("StringBuilder.setCharAt", value(sb), i -> { sb.setLength(5); sb.setCharAt(2, 'x'); });
        add("StringBuilder.append count", sb, i -> { sb.setLength(0); sb.append('c'); });
        add("StringBuilder utf16 append", value(wide), i -> { wide.setLength(1); wide.append("hello"); });
        add("StringBuilder utf16 char", value(wide), i -> { wide.setLength(1); wide.append('\u4e01'); });
        add("StringBuilder.reverse", value(wide), i -> { wide.setLength(4); wide.reverse(); });
        StringBuffer buf = new StringBuffer();
        add("StringBuffer.append", buf, i -> { buf.setLength(0); buf.append("abc"); });
    }

    private static void collections() throws Exception {
        HashMap<Integer, Object> hm = new HashMap<>(); TreeMap<Integer, Object> tm = new TreeMap<>(); ArrayDeque<Object> dq = new ArrayDeque<>(16);
        add("HashMap.put, remove", hm, i -> { hm.put(i, i); hm.remove(i); });
        HashMap<Integer, Object> full = new HashMap<>(64);
        full.put(1, 2);
        add("HashMap table", get(HashMap.class, "table", full), i -> { full.put(5, i); full.remove(5); });
        add("TreeMap.put", tm, i -> { tm.put(i, i); tm.remove(i); }); add("ArrayDeque", dq, i -> { dq.addLast(i); dq.pollFirst(); });
        LinkedHashMap<Object, Object> lru = new LinkedHashMap<>(16, .75f, true);
        lru.put(1, 1); lru.put(2, 2);
        add("LinkedHashMap.get in access order", lru, i -> lru.get(1 + (i & 1)));
        ConcurrentHashMap<Integer, Integer> ch = new ConcurrentHashMap<>(64);
        ch.put(1, 1);
        add("ConcurrentHashMap table", get(ConcurrentHashMap.class, "table", ch), i -> { ch.put(7, i); ch.remove(7); });
        add("ConcurrentHashMap size", ch, i -> { ch.put(7, i); ch.remove(7); });
        ConcurrentLinkedQueue<Object> q = new ConcurrentLinkedQueue<>();
        add("ConcurrentLinkedQueue", q, i -> { for (int k = 0; k < 4; k++) q.add(k); q.clear(); });
        ArrayList<Object> list = new ArrayList<>(64); BitSet bits = new BitSet(64); PriorityQueue<Integer> pq = new PriorityQueue<>();
        add("ArrayList", list, i -> { list.add(i); list.remove(0); }); add("BitSet", get(BitSet.class, "words", bits), i -> bits.flip(i & 31));
        add("PriorityQueue", pq, i -> { pq.add(i); pq.poll(); });
        CopyOnWriteArrayList<Object> cow = new CopyOnWriteArrayList<>();
        add("CopyOnWriteArrayList", cow, i -> { cow.add(i); cow.clear(); });
        ConcurrentSkipListMap<Integer, Object> sk = new ConcurrentSkipListMap<>();
        sk.put(1, 1);
        Object head = get(ConcurrentSkipListMap.class, "head", sk);
        add("ConcurrentSkipListMap", get(head.getClass(), "node", head), i -> { sk.remove(1); sk.put(1, i); });
    }

    private static void unsafe() throws Exception {
        Field f = sun.misc.Unsafe.class.getDeclaredField("theUnsafe");
        f.setAccessible(true);
        sun.misc.Unsafe u = (sun.misc.Unsafe) f.get(null);
        Alone a = new Alone();
        long off = u.objectFieldOffset(Alone.class.getDeclaredField("vi"));
        add("sun.misc.Unsafe.putInt", a, i -> u.putInt(a, off, i)); add("sun.misc.Unsafe.putIntVolatile", a, i -> u.putIntVolatile(a, off, i));
        add("sun.misc.Unsafe.compareAndSwapInt", a, i -> u.compareAndSwapInt(a, off, u.getInt(a, off), i));
        add("sun.misc.Unsafe.getAndAddInt", a, i -> u.getAndAddInt(a, off, 1));
        byte[] b = new byte[64];
        add("sun.misc.Unsafe.copyMemory", b, i -> u.copyMemory(new byte[8], 16, b, 16, 8));
        add("sun.misc.Unsafe.setMemory", b, i -> u.setMemory(b, 16, 8, (byte) i));
    }

    static Object get(Class<?> c, String field, Object o) throws Exception {
        Field f = c.getDeclaredField(field);
        f.setAccessible(true);
        return f.get(o);
    }

    private static Object value(StringBuilder sb) throws Exception {
        return get(Class.forName("java.lang.AbstractStringBuilder"), "value", sb);
    }
}
