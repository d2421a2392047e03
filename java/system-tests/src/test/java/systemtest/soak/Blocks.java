package systemtest.soak;

import java.io.ByteArrayInputStream;
import java.io.IOException;
import java.io.InputStream;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.lang.invoke.MethodHandles;
import java.lang.invoke.VarHandle;
import java.lang.reflect.Array;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.security.MessageDigest;
import java.util.Arrays;
import java.util.Base64;
import java.util.BitSet;
import java.util.Calendar;
import java.util.Collection;
import java.util.Date;
import java.util.GregorianCalendar;
import java.util.Random;
import java.util.StringJoiner;
import java.util.zip.Deflater;
import java.util.zip.Inflater;

/** Arrays of all types by all ways to write them, and what is built on one array: text builders, bit sets. */
final class Blocks {
    private static final int N = 200;
    private static final VarHandle LONGS_IN_BYTES = MethodHandles.byteArrayViewVarHandle(long[].class, ByteOrder.LITTLE_ENDIAN);
    private static final VarHandle INTS_IN_BYTES = MethodHandles.byteArrayViewVarHandle(int[].class, ByteOrder.BIG_ENDIAN);
    private static final VarHandle BUFFER_LONGS = MethodHandles.byteBufferViewVarHandle(long[].class, ByteOrder.BIG_ENDIAN);
    private static final VarHandle SEGMENT_LONGS = ValueLayout.JAVA_LONG.varHandle();
    private static final VarHandle INTS = MethodHandles.arrayElementVarHandle(int[].class);
    private static final VarHandle REFERENCES = MethodHandles.arrayElementVarHandle(Object[].class);
    private static final VarHandle SHORTS = MethodHandles.arrayElementVarHandle(short[].class);

    private Blocks() {}

    static void addTo(Collection<Subject<?>> all) {
        all.add(new Subject<boolean[]>("boolean[]", false, () -> new boolean[N], (a, r) -> {
            a[r.nextInt(N)] ^= true;
            common(a, r);
        }, Arrays::toString));
        all.add(new Subject<byte[]>("byte[]", false, () -> new byte[N], Blocks::bytes, Arrays::toString));
        all.add(new Subject<byte[]>("byte[] and natives", false, () -> new byte[N], Blocks::natives, Arrays::toString));
        all.add(new Subject<short[]>("short[]", false, () -> new short[N], (a, r) -> {
            a[r.nextInt(N)]++;
            SHORTS.setVolatile(a, r.nextInt(N), (short) r.nextInt());
            sortSome(r, () -> Arrays.sort(a, 20, 90), () -> Arrays.fill(a, (short) r.nextInt()));
            common(a, r);
        }, Arrays::toString));
        all.add(new Subject<char[]>("char[]", false, () -> new char[N], (a, r) -> {
            a[r.nextInt(N)] = (char) r.nextInt();
            ("characters" + r.nextInt()).getChars(0, 10, a, r.nextInt(N - 10));
            sortSome(r, () -> Arrays.sort(a), () -> Arrays.fill(a, 3, 70, 'x'));
            common(a, r);
        }, a -> Arrays.toString(new String(a).getBytes(StandardCharsets.UTF_16LE))));
        all.add(new Subject<int[]>("int[]", false, () -> new int[N], Blocks::ints, Arrays::toString));
        all.add(new Subject<int[]>("int[] of 20000", false, () -> new int[20_000], (a, r) -> {
            if (r.nextInt(40) == 0) {
                Arrays.parallelSetAll(a, i -> i * 31 ^ r.nextInt(3));
                Arrays.parallelSort(a);
                Arrays.parallelPrefix(a, Integer::sum);
            }
            for (int k = 0; k < 100; k++) {
                a[r.nextInt(a.length)] += k;
            }
        }, a -> "" + Arrays.hashCode(a)));
        all.add(new Subject<int[]>("int[], atomic", true, () -> new int[N], (a, r) -> {
            int k = r.nextInt(N);
            switch (r.nextInt(4)) {
                case 0 -> INTS.getAndAdd(a, k, r.nextInt());
                case 1 -> INTS.compareAndSet(a, k, a[k], r.nextInt());
                case 2 -> INTS.getAndSet(a, k, r.nextInt());
                default -> INTS.setVolatile(a, k, r.nextInt());
            }
        }, Arrays::toString));
        all.add(new Subject<long[]>("long[]", false, () -> new long[N], (a, r) -> {
            a[r.nextInt(N)] = r.nextLong();
            // Heap memory as a segment: all atomics are there.
            MemorySegment m = MemorySegment.ofArray(a);
            long at = 8L * r.nextInt(N);
            SEGMENT_LONGS.setVolatile(m, at, r.nextLong());
            SEGMENT_LONGS.getAndAdd(m, at, 5L);
            SEGMENT_LONGS.compareAndSet(m, at, (long) SEGMENT_LONGS.getVolatile(m, at), r.nextLong());
            sortSome(r, () -> Arrays.sort(a, 0, 100), () -> Arrays.setAll(a, k -> k * 3L));
            common(a, r);
        }, Arrays::toString));
        all.add(new Subject<float[]>("float[]", false, () -> new float[N], (a, r) -> {
            a[r.nextInt(N)] = r.nextFloat();
            sortSome(r, () -> Arrays.sort(a), () -> Arrays.fill(a, r.nextFloat()));
            common(a, r);
        }, Arrays::toString));
        all.add(new Subject<double[]>("double[]", false, () -> new double[N], (a, r) -> {
            a[r.nextInt(N)] = r.nextDouble();
            sortSome(r, () -> Arrays.sort(a, 5, 150), () -> Arrays.fill(a, 7));
            common(a, r);
        }, Arrays::toString));
        all.add(new Subject<Object[]>("Object[]", false, () -> new Object[N], Blocks::references, a -> Lists.check(Arrays.asList(a))));
        all.add(new Subject<Object[]>("Object[], atomic", true, () -> new Object[N], (a, r) -> {
            int k = r.nextInt(N);
            switch (r.nextInt(4)) {
                case 0 -> REFERENCES.getAndSet(a, k, Values.any(r));
                case 1 -> REFERENCES.compareAndSet(a, k, a[k], Values.any(r));
                case 2 -> REFERENCES.setRelease(a, k, Values.any(r));
                default -> REFERENCES.setVolatile(a, k, null);
            }
        }, a -> Lists.check(Arrays.asList(a))));
        all.add(new Subject<int[][]>("int[][]", false, () -> new int[20][], (a, r) -> {
            int k = r.nextInt(20);
            if (a[k] == null || r.nextInt(10) == 0) {
                a[k] = new int[r.nextInt(30)];
            } else if (a[k].length > 0) {
                a[k][r.nextInt(a[k].length)] = r.nextInt();
            }
        }, Arrays::deepToString));

        all.add(new Subject<StringBuilder>("StringBuilder", false, StringBuilder::new, (b, r) -> {
            switch (r.nextInt(9)) {
                case 0 -> b.insert(r.nextInt(b.length() + 1), r.nextLong());
                case 1 -> b.reverse();
                case 2 -> b.setLength(r.nextInt(b.length() + 1));
                case 3 -> b.append('€');
                case 4 -> b.delete(0, b.length() / 2);
                case 5 -> b.append(r.nextDouble()).append(new char[] {'a', 'b'}).append(true);
                case 6 -> b.replace(0, b.length() / 3, "replaced");
                case 7 -> b.append("0123456789", 2, 6).append((Object) null).repeat("ab", 3);
                default -> {
                    if (b.length() > 0) {
                        b.setCharAt(r.nextInt(b.length()), 'Z');
                        b.deleteCharAt(r.nextInt(b.length()));
                    }
                    if (r.nextInt(20) == 0) {
                        b.trimToSize();
                    }
                }
            }
            if (b.length() > 500) {
                b.setLength(10);
            }
        }, StringBuilder::toString));
        all.add(new Subject<StringBuffer>("StringBuffer", true, StringBuffer::new, (b, r) -> {
            b.append(r.nextInt()).append("é");
            if (b.length() > 400) {
                b.setLength(0);
            }
        }, StringBuffer::toString));
        all.add(new Subject<BitSet>("BitSet", false, BitSet::new, (b, r) -> {
            int k = r.nextInt(600);
            switch (r.nextInt(6)) {
                case 0 -> b.flip(k);
                case 1 -> b.clear(k, k + 40);
                case 2 -> b.set(k, k + 9);
                case 3 -> b.xor(BitSet.valueOf(new long[] {r.nextLong(), 0, r.nextLong()}));
                case 4 -> b.and(BitSet.valueOf(new long[] {-1, -1, -1, -1, r.nextLong()}));
                default -> b.set(k);
            }
        }, BitSet::toString));
        all.add(new Subject<Date>("Date", false, () -> new Date(0), (d, r) -> d.setTime(r.nextLong() >>> 22), d -> "" + d.getTime()));
        all.add(new Subject<Calendar>("GregorianCalendar", false, () -> new GregorianCalendar(2020, 1, 1), (c, r) -> {
            c.add(Calendar.DAY_OF_YEAR, r.nextInt(40) - 20);
            c.set(Calendar.HOUR, r.nextInt(12));
            c.getTimeInMillis();
        }, c -> "" + c.getTimeInMillis()));
        all.add(new Subject<StringJoiner[]>("StringJoiner", false, () -> new StringJoiner[] {new StringJoiner(",")}, (s, r) -> {
            s[0].add("part" + r.nextInt());
            if (s[0].length() > 300) {
                s[0] = new StringJoiner(";", "<", ">");
            }
        }, s -> s[0].toString()));
    }

    private static void sortSome(Random r, Runnable sort, Runnable fill) {
        int n = r.nextInt(12);
        if (n == 0) {
            sort.run();
        } else if (n == 1) {
            fill.run();
        }
    }

    /** What is written the same way whatever the type. */
    private static void common(Object a, Random r) {
        int n = Array.getLength(a);
        int from = r.nextInt(n / 2);
        int to = r.nextInt(n / 2);
        switch (r.nextInt(5)) {
            case 0 -> System.arraycopy(a, from, a, to, r.nextInt(n / 2));
            case 1 -> Array.set(a, from, Array.get(a, to));
            case 2 -> {
                Object copy = Array.newInstance(a.getClass().getComponentType(), 20);
                System.arraycopy(a, from, copy, 0, 20);
                System.arraycopy(copy, 0, a, to, 20);
            }
            default -> { }
        }
    }

    private static void ints(int[] a, Random r) {
        int k = r.nextInt(N);
        switch (r.nextInt(7)) {
            case 0 -> a[k] = r.nextInt();
            case 1 -> a[k]++;
            case 2 -> Arrays.fill(a, k, N, r.nextInt());
            case 3 -> Arrays.sort(a, 0, k);
            case 4 -> MemorySegment.ofArray(a).setAtIndex(ValueLayout.JAVA_INT, k, r.nextInt());
            case 5 -> MemorySegment.copy(MemorySegment.ofArray(new int[] {1, 2, 3}), 0, MemorySegment.ofArray(a), 4L * r.nextInt(N - 3), 12);
            default -> {
                for (int i = 0; i < N; i++) {
                    a[i] = a[i] * 31 + k;
                }
            }
        }
        common(a, r);
    }

    private static void bytes(byte[] a, Random r) {
        int k = r.nextInt(N - 16);
        switch (r.nextInt(14)) {
            case 0 -> a[k] = (byte) r.nextInt();
            case 1 -> Arrays.fill(a, k, k + 16, (byte) 7);
            case 2 -> ByteBuffer.wrap(a).putLong(k, r.nextLong());
            case 3 -> ByteBuffer.wrap(a).order(ByteOrder.LITTLE_ENDIAN).position(k).putInt(r.nextInt()).put(new byte[] {1, 2, 3}).putChar('x');
            case 4 -> ByteBuffer.wrap(a).asLongBuffer().put(r.nextInt(N / 8), r.nextLong());
            case 5 -> LONGS_IN_BYTES.set(a, k, r.nextLong());
            case 6 -> INTS_IN_BYTES.set(a, k, r.nextInt());
            case 7 -> BUFFER_LONGS.set(ByteBuffer.wrap(a), k, r.nextLong());
            case 8 -> MemorySegment.ofArray(a).asSlice(k).set(ValueLayout.JAVA_LONG_UNALIGNED, 1, r.nextLong());
            case 9 -> MemorySegment.ofArray(a).asSlice(k, 10).fill((byte) 9);
            case 10 -> ByteBuffer.wrap(a).asCharBuffer().put("chars");
            case 11 -> ByteBuffer.wrap(a, k, 12).slice().asFloatBuffer().put(1, r.nextFloat());
            case 12 -> Arrays.sort(a, k, k + 16);
            default -> ByteBuffer.allocateDirect(16).putLong(r.nextLong()).putLong(1).flip().get(a, k, 16);
        }
        common(a, r);
    }

    /** Code that writes into a caller's array without any store instruction of Java. */
    private static void natives(byte[] a, Random r) throws Exception {
        int k = r.nextInt(N / 2);
        switch (r.nextInt(9)) {
            case 0 -> r.nextBytes(a);
            case 1 -> {
                MessageDigest d = MessageDigest.getInstance(r.nextBoolean() ? "SHA-256" : "MD5");
                d.update(new byte[] {(byte) r.nextInt()});
                d.digest(a, k, 64);
            }
            case 2 -> Base64.getEncoder().encode(Values.bytes(r, 30), a);
            case 3 -> Base64.getDecoder().decode(Base64.getEncoder().encode(Values.bytes(r, 30)), a);
            case 4 -> {
                Deflater d = new Deflater();
                d.setInput(Values.bytes(r, 40));
                d.finish();
                int n = d.deflate(a, k, N - k);
                d.end();
                Inflater i = new Inflater();
                i.setInput(a, k, n);
                i.inflate(a, k / 2, 40);
                i.end();
            }
            case 5 -> new ByteArrayInputStream(Values.bytes(r, 50)).readNBytes(a, k, 50);
            case 6 -> file(a, k);
            case 7 -> StandardCharsets.UTF_8.newEncoder().encode(java.nio.CharBuffer.wrap("é ascii"), ByteBuffer.wrap(a, k, 20), true);
            default -> new java.util.SplittableRandom(r.nextLong()).nextBytes(a);
        }
    }

    private static void file(byte[] a, int k) throws IOException {
        try (InputStream in = Files.newInputStream(Path.of("/dev/urandom"))) {
            in.read(a, k, 20);
        }
        try (java.io.FileInputStream in = new java.io.FileInputStream("/dev/urandom")) {
            in.read(a, k, 30);
        }
        try (java.io.RandomAccessFile in = new java.io.RandomAccessFile("/dev/urandom", "r")) {
            in.readFully(a, k, 10);
        }
    }

    private static void references(Object[] a, Random r) {
        int k = r.nextInt(N);
        switch (r.nextInt(8)) {
            case 0 -> Arrays.fill(a, k, Math.min(N, k + 5), Values.any(r));
            case 1 -> Arrays.sort(a, java.util.Comparator.comparing(x -> x == null ? "" : x.getClass().getName()));
            case 2 -> java.util.List.of(1, "two", 3L).toArray(a);
            case 3 -> {
                Object[] fresh = {Values.any(r), new Values.Point(1, 2, "n", null), null, "s"};
                System.arraycopy(fresh, 0, a, r.nextInt(N - 4), 4);
            }
            case 4 -> new java.util.ArrayList<>(Arrays.asList(Values.any(r), Values.any(r))).toArray(a);
            default -> a[k] = Values.any(r);
        }
        common(a, r);
    }
}
