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

/** Every way to write that is known: the object written to, and an action that writes to it, each time something else. */
final class Cases {
    interface Action { void run(int i) throws Throwable; }
    /** @param calls how often the action is run */
    record Case(String name, Object target, Action action, int calls) {}

    /** Enough for C2 to compile an action and what it calls. */
    static final int HOT = 25_000;
    /** For actions that make many objects durable. */
    static final int SLOW = 20_000;

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
    private static final Object[] OWT = {"b", "a"};
    private static final String[] WORDS = {"hello", "world"};
    private static final MethodHandle CONSTANT;
    static {
        try { CONSTANT = L.findSetter(Plain.class, "i", int.class); } catch (Exception e) { throw new Error(e); }
    }

    private static void add(String name, Object target, Action a) { ALL.add(new Case(name, target, a, HOT)); }
    private static void slow(String name, Object target, Action a) { ALL.add(new Case(name, target, a, SLOW)); }

    private static long later(long a, long b) { return b; }

    /** Things that cannot be durable, with the reason. */
    record Refused(String name, Object target, String why) {}
    static final List<Refused> REFUSED = new ArrayList<>();

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
        add("d", p, i -> p.d = i); add("r", p, i -> p.r = TWO[i & 1]); add("r null", p, i -> p.r = (i & 1) == 0 ? "x" : null); add("i++", p, i -> p.i++);
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
        add("boolean[]", z, i -> z[i & 7] = (i & 8) == 0); add("byte[]", b, i -> b[i & 7] = (byte) i); add("short[]", s, i -> s[i & 7] = (short) i);
        add("char[]", c, i -> c[i & 7] = (char) i); add("int[]", n, i -> n[i & 7] += i + 1); add("long[]", j, i -> j[i & 7] = i + 1);
        add("float[]", f, i -> f[i & 7] = i + 1); add("double[]", d, i -> d[i & 7] = i + 1); add("Object[]", r, i -> r[i & 7] = TWO[i >> 3 & 1]);
        add("int[][]", m, i -> m[i & 3] = (i & 4) == 0 ? n : null); int[] inner = new int[4];
        int[][] outer = {inner, inner};
        add("int[][] inner", inner, i -> outer[i & 1][i & 3] = i);
        add("arraycopy Object[]", r, i -> System.arraycopy((i & 4) == 0 ? TWO : OWT, 0, r, i & 3, 2));
        add("arraycopy int[]", n, i -> System.arraycopy(n, i & 31, n, i * 7 & 31, 4)); add("fill Object[]", r, i -> Arrays.fill(r, TWO[i & 1]));
        add("fill int[]", n, i -> Arrays.fill(n, i)); add("setAll", n, i -> Arrays.setAll(n, k -> k ^ i));
        slow("sort int[]", n, i -> { n[i & 63] = i * 0x9e3779b1; Arrays.sort(n); });
        int[] big = new int[3000];
        slow("sort large int[]", big, i -> {
            big[(i & 0x7fffffff) % 3000] = i * 0x9e3779b1;
            if ((i & 255) == 0) Arrays.sort(big); else Arrays.sort(big, 0, 100);
        });
        Integer[] boxed = {3, 2, 1, 9, 8};
        slow("sort Object[]", boxed, i -> { boxed[i % 5] = i * 31 & 1023; Arrays.sort(boxed); });
        add("Collections.shuffle", boxed, i -> Collections.shuffle(Arrays.asList(boxed)));
        slow("Random.nextBytes", b, i -> new Random(i).nextBytes(b));
        add("String.getChars", c, i -> WORDS[i & 1].getChars(0, 5, c, i & 31)); add("getChars utf16", c, i -> ((i & 1) == 0 ? "h\u4e00llo" : "wo\u4e01ld").getChars(0, 5, c, i & 31));
        add("List.toArray(T[])", r, i -> List.of((Object[]) ((i & 1) == 0 ? TWO : OWT)).toArray(r));
    }

    private static void reflection() throws Exception {
        Plain p = new Plain();
        String[] names = {"z", "b", "s", "c", "i", "j", "f", "d", "r", "vi", "vr", "vd"};
        Object[] values = {true, (byte) 1, (short) 1, 'c', 1, 1L, 1f, 1d, "r", 1, "vr", 1d};
        Object[] others = {false, (byte) 2, (short) 2, 'd', 2, 2L, 2f, 2d, "s", 2, "vs", 2d};
        for (int k = 0; k < names.length; k++) {
            Field f = Plain.class.getDeclaredField(names[k]);
            Object[] v = {values[k], others[k]};
            f.setAccessible(true);
            add("Field.set " + names[k], p, i -> f.set(p, v[i & 1]));
            MethodHandle setter = L.unreflectSetter(f);
            add("MethodHandle setter " + names[k], p, i -> setter.invoke(p, v[i & 1]));
            MethodHandle bound = setter.bindTo(p);
            add("MethodHandle bound " + names[k], p, i -> bound.invoke(v[i & 1]));
        }
        int[] n = new int[8]; Object[] r = new Object[8]; double[] d = new double[8]; boolean[] z = new boolean[8]; byte[] b = new byte[8];
        add("Array.setByte", b, i -> Array.setByte(b, i & 7, (byte) (i + 1)));
        add("Array.setInt", n, i -> Array.setInt(n, i & 7, i + 1)); add("Array.set int", n, i -> Array.set(n, i & 7, i + 1));
        add("Array.set", r, i -> Array.set(r, i & 7, TWO[i >> 3 & 1])); add("Array.setDouble", d, i -> Array.setDouble(d, i & 7, i + 1));
        add("Array.setBoolean", z, i -> Array.setBoolean(z, i & 7, (i & 8) == 0));
        Field fi = Plain.class.getDeclaredField("i");
        add("Field.setInt", p, i -> fi.setInt(p, i));
        add("constant MethodHandle", p, i -> { CONSTANT.invokeExact(p, i); });
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
        add("long getAndSet", p, i -> { long o = (long) j.getAndSet(p, (long) i); }); add("double getAndAdd", p, i -> { double o = (double) d.getAndAdd(p, 1d); });
        add("double compareAndSet", p, i -> d.compareAndSet(p, (double) d.get(p), (double) i));
        add("byte getAndBitwiseOr", p, i -> { p.vb = 0; byte o = (byte) b.getAndBitwiseOr(p, (byte) i); });
        add("boolean compareAndSet", p, i -> z.compareAndSet(p, (boolean) z.get(p), (i & 1) == 0));
        Object[] a = new Object[4]; long[] ja = new long[4]; byte[] ba = new byte[64];
        VarHandle av = MethodHandles.arrayElementVarHandle(Object[].class), jv = MethodHandles.arrayElementVarHandle(long[].class);
        add("array VarHandle.setVolatile", a, i -> av.setVolatile(a, i & 3, TWO[i >> 2 & 1]));
        add("array VarHandle.compareAndSet", ja, i -> jv.compareAndSet(ja, 0, (long) jv.get(ja, 0), (long) i));
        MethodHandle as = MethodHandles.arrayElementSetter(Object[].class), is = MethodHandles.arrayElementSetter(long[].class);
        add("array setter", a, i -> as.invoke(a, i & 3, TWO[i >> 2 & 1])); add("long array setter", ja, i -> is.invoke(ja, i & 3, (long) i + 1));
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
        add("AtomicReference.set", ar, i -> ar.set(TWO[i & 1])); add("AtomicReference.compareAndSet", ar, i -> ar.compareAndSet(ar.get(), TWO[i & 1]));
        add("AtomicReference.getAndSet", ar, i -> ar.getAndSet(TWO[i & 1])); add("LongAdder.add", la, i -> la.add(3));
        add("AtomicIntegerArray", get(AtomicIntegerArray.class, "array", aia), i -> aia.incrementAndGet(i & 3));
        AtomicReferenceArray<Object> ara = new AtomicReferenceArray<>(4); AtomicStampedReference<Object> asr = new AtomicStampedReference<>("a", 0);
        add("AtomicReferenceArray", get(AtomicReferenceArray.class, "array", ara), i -> ara.set(i & 3, TWO[i >> 2 & 1]));
        slow("AtomicStampedReference", asr, i -> asr.set(TWO[i & 1], i)); LongAccumulator max = new LongAccumulator(Cases::later, 0);
        REFUSED.add(new Refused("LongAccumulator", max, "holds a lambda"));
        Plain p = new Plain();
        var ru = AtomicReferenceFieldUpdater.newUpdater(Plain.class, Object.class, "vr");
        var iu = AtomicIntegerFieldUpdater.newUpdater(Plain.class, "vi");
        var ju = AtomicLongFieldUpdater.newUpdater(Plain.class, "vj");
        add("AtomicReferenceFieldUpdater", p, i -> ru.set(p, TWO[i & 1])); add("AtomicIntegerFieldUpdater", p, i -> iu.incrementAndGet(p));
        add("AtomicLongFieldUpdater", p, i -> ju.getAndAdd(p, 2));
        Random rnd = new Random(1);
        add("Random.nextInt (seed)", get(Random.class, "seed", rnd), i -> rnd.nextInt());
    }

    private static void buffers() {
        byte[] b = new byte[64]; int[] n = new int[16];
        REFUSED.add(new Refused("ByteBuffer", ByteBuffer.allocate(8), "its address may be native; its array is data"));
        REFUSED.add(new Refused("MemorySegment", MemorySegment.ofArray(n), "belongs to a scope; its array is data"));
        ByteBuffer bb = ByteBuffer.wrap(b);
        add("ByteBuffer.putLong", b, i -> bb.putLong(0, i)); add("ByteBuffer.put", b, i -> bb.put(i & 31, (byte) (i + 1)));
        add("ByteBuffer.put bulk", b, i -> { bb.clear(); bb.put(new byte[] {1, 2, (byte) i, 4}); }); add("asIntBuffer", b, i -> bb.asIntBuffer().put(1, i));
        add("direct to heap", b, new Action() {
            final ByteBuffer direct = ByteBuffer.allocateDirect(8);
            public void run(int i) { direct.clear(); direct.put(3, (byte) i); direct.get(b, 0, 8); }
        });
        add("MemorySegment.set", b, i -> MemorySegment.ofArray(b).set(ValueLayout.JAVA_BYTE, 0, (byte) i));
        add("MemorySegment long", b, i -> MemorySegment.ofArray(b).set(ValueLayout.JAVA_LONG_UNALIGNED, 3, i));
        add("MemorySegment.fill", n, i -> MemorySegment.ofArray(n).fill((byte) i));
        add("MemorySegment.copy", n, i -> MemorySegment.copy(MemorySegment.ofArray(new int[] {i, 1, i, 3}), 0, MemorySegment.ofArray(n), 0, 16));
        add("MemorySegment.asByteBuffer", b, i -> MemorySegment.ofArray(b).asByteBuffer().putInt(0, i));
    }

    private static void natives() throws Exception {
        byte[] b = new byte[64], src = {1, 2, 3};
        FileInputStream random = new FileInputStream("/dev/urandom");
        RandomAccessFile raf = new RandomAccessFile("/dev/urandom", "r");
        add("FileInputStream.read", b, i -> random.read(b, 4, 8)); add("RandomAccessFile.read", b, i -> raf.read(b));
        add("ByteArrayInputStream.read", b, i -> { src[1] = (byte) i; new ByteArrayInputStream(src).read(b); });
        REFUSED.add(new Refused("FileInputStream", random, "stands for an open file"));
        REFUSED.add(new Refused("Inflater", new Inflater(), "holds native memory"));
        REFUSED.add(new Refused("Thread", Thread.currentThread(), "runs"));
        REFUSED.add(new Refused("lambda", (Runnable) () -> { }, "its class has no name of its own"));
        Deflater def = new Deflater();
        byte[][] zip = {new byte[50], new byte[50]};
        int[] n = new int[2];
        for (int k = 0; k < 2; k++) {
            def.reset(); def.setInput(WORDS[k].getBytes()); def.finish(); n[k] = def.deflate(zip[k]);
        }
        Inflater inf = new Inflater();
        slow("Inflater.inflate", b, i -> { inf.reset(); inf.setInput(zip[i & 1], 0, n[i & 1]); inf.inflate(b); });
        slow("Deflater.deflate", b, i -> { def.reset(); src[1] = (byte) i; def.setInput(src); def.finish(); def.deflate(b); });
        byte[] text = "hello world, hello world!".getBytes(), coded = Base64.getEncoder().encode(text), upper = Base64.getEncoder().encode("HELLO WORLD, HELLO WORLD!".getBytes());
        add("Base64 encode", b, i -> { text[2] = (byte) i; Base64.getEncoder().encode(text, b); }); add("Base64 decode", b, i -> Base64.getDecoder().decode((i & 1) == 0 ? coded : upper, b));
    }

    private static void strings() throws Exception {
        byte[] b = new byte[64]; char[] c = new char[64];
        var latin = java.nio.charset.StandardCharsets.ISO_8859_1.newEncoder();
        var utf8 = java.nio.charset.StandardCharsets.UTF_8.newEncoder(); var dec = java.nio.charset.StandardCharsets.UTF_8.newDecoder();
        add("ISO_8859_1 encoder", b, i -> latin.encode(java.nio.CharBuffer.wrap((i & 1) == 0 ? "abcdefghij" : "bcdefghijk"), ByteBuffer.wrap(b), true));
        add("UTF_8 encoder", b, i -> utf8.encode(java.nio.CharBuffer.wrap(((i & 1) == 0 ? "abcdefghij" : "bcdefghijk").toCharArray()), ByteBuffer.wrap(b), true));
        add("UTF_8 decoder", c, i -> dec.decode(ByteBuffer.wrap(new byte[] {65, (byte) (i & 63), 67}), java.nio.CharBuffer.wrap(c), true));
        StringBuilder sb = new StringBuilder(64), wide = new StringBuilder(64).append('\u4e00');
        add("StringBuilder.append(String) value", value(sb), i -> { sb.setLength(0); sb.append(WORDS[i & 1]); });
        add("StringBuilder.append(int) value", value(sb), i -> { sb.setLength(0); sb.append(i); });
        add("StringBuilder.setCharAt", value(sb), i -> { sb.setLength(5); sb.setCharAt(2, (char) ('a' + (i & 15))); });
        add("StringBuilder.append count", sb, i -> { if (sb.length() > 40) sb.setLength(0); sb.append('c'); });
        slow("StringBuilder utf16 append", value(wide), i -> { wide.setLength(1); wide.append(WORDS[i & 1]); });
        slow("StringBuilder utf16 char", value(wide), i -> { wide.setLength(1); wide.append((char) (0x4e00 + (i & 255))); });
        slow("StringBuilder.reverse", value(wide), i -> { wide.setLength(4); wide.setCharAt(1, (char) i); wide.reverse(); });
        StringBuffer buf = new StringBuffer();
        add("StringBuffer.append", buf, i -> { if (buf.length() > 9) buf.setLength(0); buf.append("abc"); });
    }

    private static void collections() throws Exception {
        HashMap<Integer, Object> hm = new HashMap<>(); TreeMap<Integer, Object> tm = new TreeMap<>(); ArrayDeque<Object> dq = new ArrayDeque<>(16);
        slow("HashMap.put, remove", hm, i -> { hm.put(i & 63, i); if ((i & 3) == 0) hm.remove(i + 9 & 63); });
        HashMap<Integer, Object> full = new HashMap<>(64);
        full.put(1, 2);
        slow("HashMap table", get(HashMap.class, "table", full), i -> { if ((i & 1) == 0) full.put(5, i); else full.remove(5); });
        slow("TreeMap.put", tm, i -> { tm.put(i & 63, i); if ((i & 3) == 0) tm.remove(i + 9 & 63); }); slow("ArrayDeque", dq, i -> { dq.addLast(i); if (dq.size() > 9) dq.pollFirst(); });
        LinkedHashMap<Object, Object> lru = new LinkedHashMap<>(16, .75f, true);
        lru.put(1, 1); lru.put(2, 2);
        add("LinkedHashMap.get in access order", lru, i -> lru.get(1 + (i & 1)));
        ConcurrentHashMap<Integer, Integer> ch = new ConcurrentHashMap<>(64);
        ch.put(1, 1);
        slow("ConcurrentHashMap table", get(ConcurrentHashMap.class, "table", ch), i -> { if ((i & 1) == 0) ch.put(7, i); else ch.remove(7); });
        slow("ConcurrentHashMap size", ch, i -> { if ((i & 1) == 0) ch.put(7, i); else ch.remove(7); });
        ConcurrentLinkedQueue<Object> q = new ConcurrentLinkedQueue<>();
        slow("ConcurrentLinkedQueue", q, i -> { for (int k = 0; k < 4; k++) q.add(k); q.clear(); });
        ArrayList<Object> list = new ArrayList<>(64); BitSet bits = new BitSet(64); PriorityQueue<Integer> pq = new PriorityQueue<>();
        slow("ArrayList", list, i -> { list.add(i); if (list.size() > 9) list.remove(0); }); add("BitSet", get(BitSet.class, "words", bits), i -> bits.flip(i & 31));
        slow("PriorityQueue", pq, i -> { pq.add(i); if (pq.size() > 9) pq.poll(); });
        LinkedList<Object> ll = new LinkedList<>(); Vector<Object> ve = new Vector<>(); Hashtable<Integer, Object> ht = new Hashtable<>();
        slow("LinkedList", ll, i -> { ll.addFirst(i); if (ll.size() > 9) ll.removeLast(); });
        slow("Vector", ve, i -> { ve.add(i); if (ve.size() > 9) ve.remove(3); });
        slow("Hashtable", ht, i -> { ht.put(i & 63, i); if ((i & 3) == 0) ht.remove(i + 9 & 63); });
        IdentityHashMap<Object, Object> id = new IdentityHashMap<>(); EnumMap<TimeUnit, Object> em = new EnumMap<>(TimeUnit.class);
        id.put("k", 0); em.put(TimeUnit.DAYS, 0);
        slow("IdentityHashMap", get(IdentityHashMap.class, "table", id), i -> id.put("k", i));
        slow("EnumMap", get(EnumMap.class, "vals", em), i -> em.put(TimeUnit.DAYS, i));
        slow("List.set", get(ArrayList.class, "elementData", list), i -> { if (list.isEmpty()) list.add(0); list.set(0, i); });
        ArrayBlockingQueue<Object> abq = new ArrayBlockingQueue<>(16); LinkedBlockingQueue<Object> lbq = new LinkedBlockingQueue<>();
        slow("ArrayBlockingQueue", get(ArrayBlockingQueue.class, "items", abq), i -> { abq.add(i); if (abq.size() > 9) abq.poll(); });
        slow("LinkedBlockingQueue", lbq, i -> { lbq.add(i); if (lbq.size() > 9) lbq.poll(); });
        CopyOnWriteArrayList<Object> cow = new CopyOnWriteArrayList<>();
        slow("CopyOnWriteArrayList", cow, i -> { cow.add(i); if (cow.size() > 5) cow.clear(); });
        ConcurrentSkipListMap<Integer, Object> sk = new ConcurrentSkipListMap<>();
        sk.put(1, 1);
        Object head = get(ConcurrentSkipListMap.class, "head", sk);
        slow("ConcurrentSkipListMap", get(head.getClass(), "node", head), i -> { if ((i & 1) == 0) sk.remove(1); else sk.put(1, i); });
    }

    @SuppressWarnings({"removal", "deprecation"})
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
        long base = u.arrayBaseOffset(byte[].class);
        Plain p = new Plain();
        long ref = u.objectFieldOffset(Plain.class.getDeclaredField("r"));
        add("sun.misc.Unsafe.putObject", p, i -> u.putObject(p, ref, TWO[i & 1]));
        add("sun.misc.Unsafe.putOrderedObject", p, i -> u.putOrderedObject(p, ref, TWO[i & 1]));
        add("sun.misc.Unsafe.getAndSetObject", p, i -> u.getAndSetObject(p, ref, TWO[i & 1]));
        add("sun.misc.Unsafe.compareAndSwapObject", p, i -> u.compareAndSwapObject(p, ref, p.r, TWO[i & 1]));
        add("sun.misc.Unsafe.copyMemory", b, i -> u.copyMemory(new byte[] {1, 2, (byte) i, 4, 5, 6, 7, 8}, base, b, base, 8));
        add("sun.misc.Unsafe.setMemory", b, i -> u.setMemory(b, base, 8, (byte) i));
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
