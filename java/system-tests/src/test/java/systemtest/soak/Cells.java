package systemtest.soak;

import java.lang.invoke.MethodHandle;
import java.lang.invoke.MethodHandles;
import java.lang.invoke.VarHandle;
import java.lang.reflect.Field;
import java.util.Collection;
import java.util.Random;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicIntegerArray;
import java.util.concurrent.atomic.AtomicIntegerFieldUpdater;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.atomic.AtomicLongArray;
import java.util.concurrent.atomic.AtomicLongFieldUpdater;
import java.util.concurrent.atomic.AtomicMarkableReference;
import java.util.concurrent.atomic.AtomicReference;
import java.util.concurrent.atomic.AtomicReferenceArray;
import java.util.concurrent.atomic.AtomicReferenceFieldUpdater;
import java.util.concurrent.atomic.AtomicStampedReference;
import java.util.concurrent.atomic.DoubleAccumulator;
import java.util.concurrent.atomic.DoubleAdder;
import java.util.concurrent.atomic.LongAccumulator;
import java.util.concurrent.atomic.LongAdder;

/** Single fields: all atomics, and every way there is to write a field of one's own class. */
final class Cells {
    private Cells() {}

    /** Fields of all types, plain and volatile. */
    static class Base {
        boolean z;
        byte b;
        short s;
        char c;
        int i;
        long j;
        float f;
        double d;
        Object l;
        volatile boolean vz;
        volatile byte vb;
        volatile short vs;
        volatile char vc;
        volatile int vi;
        volatile long vj;
        volatile float vf;
        volatile double vd;
        volatile Object vl;
        /** Not durable: 0 after recovery, and not part of any comparison. */
        transient int left;
    }

    /** Inherits, and hides one of the fields. */
    static final class Bean extends Base {
        private int i;
        private String text = "";
        private long count;

        String all() {
            return z + " " + b + " " + s + " " + (int) c + " " + i + " " + super.i + " " + j + " " + f + " " + d + " " + Maps.plain(l) + " " + vz + " " + vb + " "
                + vs + " " + (int) vc + " " + vi + " " + vj + " " + vf + " " + vd + " " + Maps.plain(vl) + " " + text + " " + count;
        }
    }

    private static final String[] TYPES = {"z", "b", "s", "c", "i", "j", "f", "d", "l"};
    private static final VarHandle[] HANDLES = new VarHandle[18];
    private static final Field[] FIELDS = new Field[18];
    private static final MethodHandle[] SETTERS = new MethodHandle[18];
    private static final AtomicIntegerFieldUpdater<Base> INT = AtomicIntegerFieldUpdater.newUpdater(Base.class, "vi");
    private static final AtomicLongFieldUpdater<Base> LONG = AtomicLongFieldUpdater.newUpdater(Base.class, "vj");
    private static final AtomicReferenceFieldUpdater<Base, Object> REFERENCE = AtomicReferenceFieldUpdater.newUpdater(Base.class, Object.class, "vl");

    static {
        try {
            MethodHandles.Lookup lookup = MethodHandles.lookup();
            for (int k = 0; k < 18; k++) {
                FIELDS[k] = Base.class.getDeclaredField((k < 9 ? "" : "v") + TYPES[k % 9]);
                HANDLES[k] = lookup.unreflectVarHandle(FIELDS[k]);
                SETTERS[k] = lookup.unreflectSetter(FIELDS[k]);
            }
        } catch (ReflectiveOperationException e) {
            throw new ExceptionInInitializerError(e);
        }
    }

    static void addTo(Collection<Subject<?>> all) {
        all.add(new Subject<Bean>("fields, plain code", false, Bean::new, Cells::plain, Bean::all));
        all.add(new Subject<Bean>("fields, racing", true, Bean::new, Cells::plain, Bean::all));
        all.add(new Subject<Bean>("fields, handles", false, Bean::new, Cells::handles, Bean::all));
        all.add(new Subject<Bean>("fields, atomic handles", true, Bean::new, Cells::atomicHandles, Bean::all));
        all.add(new Subject<Bean>("fields, reflection", false, Bean::new, Cells::reflection, Bean::all));
        all.add(new Subject<Bean>("fields, updaters", true, Bean::new, Cells::updaters, Bean::all));

        all.add(new Subject<AtomicInteger>("AtomicInteger", true, AtomicInteger::new, (a, r) -> {
            switch (r.nextInt(7)) {
                case 0 -> a.incrementAndGet();
                case 1 -> a.getAndAdd(r.nextInt());
                case 2 -> a.compareAndSet(a.get(), r.nextInt());
                case 3 -> a.updateAndGet(x -> x * 31);
                case 4 -> a.lazySet(r.nextInt());
                case 5 -> a.weakCompareAndSetPlain(a.get(), 5);
                default -> a.set(r.nextInt());
            }
        }, AtomicInteger::toString));
        all.add(new Subject<AtomicLong>("AtomicLong", true, AtomicLong::new, (a, r) -> {
            switch (r.nextInt(6)) {
                case 0 -> a.decrementAndGet();
                case 1 -> a.getAndSet(r.nextLong());
                case 2 -> a.compareAndExchange(a.get(), r.nextLong());
                case 3 -> a.accumulateAndGet(3, Long::sum);
                case 4 -> a.setPlain(r.nextLong());
                default -> a.setRelease(r.nextLong());
            }
        }, AtomicLong::toString));
        all.add(new Subject<AtomicBoolean>("AtomicBoolean", true, AtomicBoolean::new, (a, r) -> {
            switch (r.nextInt(3)) {
                case 0 -> a.getAndSet(r.nextBoolean());
                case 1 -> a.compareAndSet(true, false);
                default -> a.set(true);
            }
        }, AtomicBoolean::toString));
        all.add(new Subject<AtomicReference<Object>>("AtomicReference", true, AtomicReference::new, (a, r) -> {
            switch (r.nextInt(5)) {
                case 0 -> a.getAndSet(Values.any(r));
                case 1 -> a.compareAndSet(a.get(), Values.any(r));
                case 2 -> a.updateAndGet(x -> Values.any(r));
                case 3 -> a.lazySet(null);
                default -> a.set(Values.any(r));
            }
        }, a -> "" + Maps.plain(a.get())));
        all.add(new Subject<AtomicIntegerArray>("AtomicIntegerArray", true, () -> new AtomicIntegerArray(40), (a, r) -> {
            int k = r.nextInt(40);
            switch (r.nextInt(4)) {
                case 0 -> a.getAndIncrement(k);
                case 1 -> a.compareAndSet(k, a.get(k), r.nextInt());
                case 2 -> a.getAndUpdate(k, x -> ~x);
                default -> a.set(k, r.nextInt());
            }
        }, AtomicIntegerArray::toString));
        all.add(new Subject<AtomicLongArray>("AtomicLongArray", true, () -> new AtomicLongArray(40), (a, r) -> {
            int k = r.nextInt(40);
            switch (r.nextInt(3)) {
                case 0 -> a.addAndGet(k, r.nextLong());
                case 1 -> a.lazySet(k, r.nextLong());
                default -> a.getAndSet(k, r.nextLong());
            }
        }, AtomicLongArray::toString));
        all.add(new Subject<AtomicReferenceArray<Object>>("AtomicReferenceArray", true, () -> new AtomicReferenceArray<>(40), (a, r) -> {
            int k = r.nextInt(40);
            switch (r.nextInt(5)) {
                case 0 -> a.getAndSet(k, Values.any(r));
                case 1 -> a.compareAndSet(k, a.get(k), Values.any(r));
                case 2 -> a.accumulateAndGet(k, Values.any(r), (x, y) -> y);
                case 3 -> a.setRelease(k, null);
                default -> a.set(k, Values.any(r));
            }
        }, a -> {
            StringBuilder s = new StringBuilder();
            for (int k = 0; k < a.length(); k++) {
                s.append(Maps.plain(a.get(k))).append(' ');
            }
            return s.toString();
        }));
        all.add(new Subject<AtomicMarkableReference<Object>>("AtomicMarkableReference", true, () -> new AtomicMarkableReference<>("x", false), (a, r) -> {
            Object now = a.getReference();
            a.compareAndSet(now, Values.any(r), a.isMarked(), r.nextBoolean());
            a.attemptMark(a.getReference(), r.nextBoolean());
        }, a -> Maps.plain(a.getReference()) + " " + a.isMarked()));
        all.add(new Subject<AtomicStampedReference<Object>>("AtomicStampedReference", true, () -> new AtomicStampedReference<>("x", 0), (a, r) ->
            a.compareAndSet(a.getReference(), Values.any(r), a.getStamp(), r.nextInt()), a -> Maps.plain(a.getReference()) + " " + a.getStamp()));
        all.add(new Subject<LongAdder>("LongAdder", true, LongAdder::new, (a, r) -> a.add(r.nextInt()), LongAdder::toString));
        all.add(new Subject<DoubleAdder>("DoubleAdder", true, DoubleAdder::new, (a, r) -> a.add(r.nextInt(1000)), DoubleAdder::toString));
        // Named functions: a lambda cannot be durable.
        all.add(new Subject<LongAccumulator>("LongAccumulator", true, () -> new LongAccumulator(new Larger(), Long.MIN_VALUE), (a, r) -> a.accumulate(r.nextLong()),
            LongAccumulator::toString));
        all.add(new Subject<DoubleAccumulator>("DoubleAccumulator", true, () -> new DoubleAccumulator(new Larger(), 0), (a, r) -> a.accumulate(r.nextDouble()),
            DoubleAccumulator::toString));
        // Its seed is an atomic.
        all.add(new Subject<Random>("Random", true, () -> new Random(1), (a, r) -> a.nextInt(), a -> ""));
    }

    static final class Larger implements java.util.function.LongBinaryOperator, java.util.function.DoubleBinaryOperator {
        @Override
        public long applyAsLong(long a, long b) {
            return Math.max(a, b);
        }

        @Override
        public double applyAsDouble(double a, double b) {
            return Math.max(a, b);
        }
    }

    private static void plain(Bean o, Random r) {
        int n = r.nextInt();
        Base base = o;
        switch (r.nextInt(22)) {
            case 0 -> o.z = (n & 1) != 0;
            case 1 -> o.b = (byte) n;
            case 2 -> o.s = (short) n;
            case 3 -> o.c = (char) n;
            case 4 -> o.i = n;
            case 5 -> base.i = n;
            case 6 -> o.j = r.nextLong();
            case 7 -> o.f = n;
            case 8 -> o.d = r.nextDouble();
            case 9 -> o.l = Values.any(r);
            case 10 -> o.vz = (n & 1) != 0;
            case 11 -> o.vb = (byte) n;
            case 12 -> o.vs = (short) n;
            case 13 -> o.vc = (char) n;
            case 14 -> o.vi = n;
            case 15 -> o.vj = r.nextLong();
            case 16 -> o.vf = n;
            case 17 -> o.vd = r.nextDouble();
            case 18 -> o.vl = Values.any(r);
            case 19 -> o.text = "t" + n;
            case 20 -> o.left = n;
            default -> {
                for (int k = 0; k < 50; k++) {
                    o.count++;
                    o.b ^= (byte) k;
                }
            }
        }
    }

    private static Object value(int k, Random r) {
        return switch (k % 9) {
            case 0 -> (Object) r.nextBoolean();
            case 1 -> (byte) r.nextInt();
            case 2 -> (short) r.nextInt();
            case 3 -> (char) r.nextInt();
            case 4 -> r.nextInt();
            case 5 -> r.nextLong();
            case 6 -> r.nextFloat();
            case 7 -> r.nextDouble();
            default -> Values.any(r);
        };
    }

    private static void handles(Bean o, Random r) throws Exception {
        int k = r.nextInt(18);
        Object v = value(k, r);
        VarHandle h = HANDLES[k];
        Base base = o;
        switch (r.nextInt(6)) {
            case 0 -> h.set(base, v);
            case 1 -> h.setOpaque(base, v);
            case 2 -> h.setRelease(base, v);
            case 3 -> h.setVolatile(base, v);
            case 4 -> HANDLES[4].set(base, r.nextInt());
            default -> {
                try {
                    SETTERS[k].invoke(base, v);
                } catch (Throwable e) {
                    throw new AssertionError(e);
                }
            }
        }
    }

    private static void atomicHandles(Bean o, Random r) {
        int k = r.nextInt(18);
        Object v = value(k, r);
        VarHandle h = HANDLES[k];
        Base base = o;
        switch (r.nextInt(8)) {
            case 0 -> h.getAndSet(base, v);
            case 1 -> h.compareAndSet(base, h.getVolatile(base), v);
            case 2 -> h.weakCompareAndSetPlain(base, h.getVolatile(base), v);
            case 3 -> h.compareAndExchangeAcquire(base, h.getVolatile(base), v);
            case 4 -> HANDLES[4 + 9 * r.nextInt(2)].getAndAdd(base, r.nextInt());
            case 5 -> HANDLES[5 + 9 * r.nextInt(2)].getAndBitwiseXor(base, r.nextLong());
            case 6 -> HANDLES[1].getAndBitwiseOr(base, (byte) r.nextInt());
            default -> h.setVolatile(base, v);
        }
    }

    private static void reflection(Bean o, Random r) throws Exception {
        int k = r.nextInt(18);
        if (k % 9 == 4) {
            FIELDS[k].setInt(o, r.nextInt());
        } else if (k % 9 == 5) {
            FIELDS[k].setLong(o, r.nextLong());
        } else {
            FIELDS[k].set(o, value(k, r));
        }
    }

    private static void updaters(Bean o, Random r) {
        switch (r.nextInt(5)) {
            case 0 -> INT.addAndGet(o, r.nextInt());
            case 1 -> LONG.getAndSet(o, r.nextLong());
            case 2 -> REFERENCE.set(o, Values.any(r));
            case 3 -> REFERENCE.compareAndSet(o, o.vl, Values.any(r));
            default -> INT.lazySet(o, r.nextInt());
        }
    }
}
