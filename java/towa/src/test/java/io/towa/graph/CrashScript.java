package io.towa.graph;

import io.towa.medium.Nvm;
import io.towa.pool.Allocator;
import io.towa.pool.Layout;
import io.towa.pool.UndoLog;
import java.util.Arrays;
import java.util.Random;

/** A run for crash images: promotions, stores of all kinds, sections, new classes and roots, collections whose blocks are used again. */
final class CrashScript {
    static class Counter {
        long a0, a1, a2, a3, a4, a5, a6, a7;
        long value;
        long b0, b1, b2, b3, b4, b5, b6, b7;
    }

    static class Node {
        Node next;
        Object payload;
        long value;
        int half;
        byte flag;
    }

    static class World {
        Counter first = new Counter();
        Counter second = new Counter();
        Node list;
        Object[] slots = new Object[24];
        byte[] bytes = new byte[200];
        long[] numbers = new long[40];
        Object any;
    }

    /** Classes that the pool meets one after the other. */
    static class New0 { long x; Object r; }
    static class New1 { int x; Object r; }
    static class New2 { short x; Object r; }
    static class New3 { byte x; Object r; }
    static class New4 { char x; Object r; long[] y; }
    static class New5 { double x; Object r; }
    static class New6 { float x; Object r; String s; }
    static class New7 extends New6 { boolean x2; }
    static class New8 extends New7 { long z; }
    static class New9 extends New8 { Object q; }
    private static final Class<?>[] NEW = {New0.class, New1.class, New2.class, New3.class, New4.class, New5.class, New6.class, New7.class,
        New8.class, New9.class, int[].class, short[].class, char[].class, double[].class, float[].class, boolean[].class, New0[].class,
        Integer.class, Long.class};

    private final CrashRecorder trace;
    private final Random random;
    private final World w = new World();
    private long[] states = new long[64];
    private int state;
    private long tick;
    private int met;
    private Roots.Root second;

    CrashScript(CrashRecorder trace, long seed) {
        this.trace = trace;
        random = new Random(seed);
    }

    void begin() {
        DirectPool.setRoot(w);
        states[0] = CrashImages.stateNow();
    }

    long[] states() {
        return states;
    }

    /** The next statement begins. */
    private void next() {
        state++;
        if (state == states.length) {
            states = Arrays.copyOf(states, 2 * state);
        }
        trace.state(state);
    }

    private void done() {
        Nvm.record(null);
        states[state] = CrashImages.stateNow();
        Nvm.record(trace);
        // A statement that has ended is there: nothing else will do.
        state++;
        if (state == states.length) {
            states = Arrays.copyOf(states, 2 * state);
        }
        states[state] = states[state - 1];
        trace.state(state);
    }

    void run(int steps) {
        for (int i = 0; i < steps; i++) {
            step(i);
        }
    }

    private void set(Object o, String field, Object v) {
        next();
        DirectPool.set(o, field, v);
        done();
    }

    private void set(Object o, String field, long v) {
        next();
        DirectPool.set(o, field, v);
        done();
    }

    private void step(int i) {
        switch (random.nextInt(16)) {
            case 0:
            case 1:
                tick++;
                set(w.first, "value", tick);
                set(w.second, "value", tick);
                break;
            case 2:
            case 3:
                set(w, "list", node());
                break;
            case 4:
            case 5:
                if (w.list != null) {
                    set(w, "list", w.list.next);
                }
                break;
            case 6:
                next();
                DirectPool.set(w.slots, random.nextInt(w.slots.length), random.nextInt(3) == 0 ? null : payload());
                done();
                break;
            case 7:
                next();
                DirectPool.set(w.slots, random.nextInt(w.slots.length), (Object) w.list);
                done();
                break;
            case 8:
                next();
                DirectPool.set(w.bytes, random.nextInt(w.bytes.length), (byte) random.nextInt());
                done();
                break;
            case 9:
                volatileReference(w, "any", random.nextInt(3) == 0 ? null : payload());
                break;
            case 10:
                volatileLong(w.first, "b3", random.nextLong());
                break;
            case 11:
                if (w.list != null) {
                    next();
                    DirectPool.set(w.list, "half", random.nextInt());
                    done();
                }
                break;
            case 12:
                next();
                Collector.collect();
                done();
                break;
            case 13:
                meet();
                break;
            case 14:
                if (random.nextInt(4) == 0) {
                    grow();
                } else {
                    undone();
                }
                break;
            default:
                section();
        }
    }

    private Node node() {
        Node n = new Node();
        n.next = w.list;
        n.value = random.nextLong();
        n.payload = payload();
        // So that the list does not grow without end.
        Node cut = n;
        for (int d = 0; cut != null && d < 10; d++) {
            cut = cut.next;
        }
        if (cut != null) {
            n.next = null;
        }
        return n;
    }

    private Object payload() {
        switch (random.nextInt(5)) {
            case 0:
                return "text " + random.nextInt();
            case 1:
                long[] a = new long[random.nextInt(60)];
                Arrays.setAll(a, k -> random.nextLong());
                return a;
            case 2:
                return new Object[] {new Node(), w.list, random.nextBoolean() ? "x" : new byte[1 << random.nextInt(14)]};
            case 3:
                return new Counter();
            default:
                byte[] b = new byte[random.nextInt(300)];
                random.nextBytes(b);
                return b;
        }
    }

    /** An object of a class that the pool does not know, or a second root. */
    private void meet() {
        if (met == NEW.length || random.nextInt(4) == 0) {
            next();
            if (second == null) {
                second = DirectPool.addRoot("second");
            }
            DirectPool.second = random.nextBoolean() ? null : node();
            Roots.mirror(second);
            done();
            return;
        }
        Class<?> c = NEW[met++];
        try {
            Object o = c.isArray() ? java.lang.reflect.Array.newInstance(c.getComponentType(), 9)
                : c == Integer.class ? (Object) (1000 + met) : c == Long.class ? (Object) (1000L + met) : c.getDeclaredConstructor().newInstance();
            next();
            DirectPool.set(w.slots, met % w.slots.length, o);
            done();
        } catch (ReflectiveOperationException e) {
            throw new AssertionError(e);
        }
    }

    /** Uses the pool up to its frontier, so that what comes next needs that moved. */
    private void grow() {
        long frontier = Nvm.getLong(Layout.FRONTIER);
        if (frontier > 14 << 20) {
            return;
        }
        next();
        Allocator a = DurableGraph.allocator();
        int gate = Gate.enter();
        Allocator.Cache cache = a.acquire();
        while (a.allocate(cache, 8192) < frontier - 16384) {
            // next
        }
        a.release(cache);
        Gate.exit(gate);
        done();
        for (int i = 0; i < 4; i++) {
            next();
            DirectPool.set(w.slots, i, new byte[5000]);
            done();
        }
        for (int i = 0; i < 4; i++) {
            next();
            DirectPool.set(w.slots, i, (Object) null);
            done();
        }
    }

    /** As if a crash had been, and the next opening undid the section. */
    private void undone() {
        next();
        long[] old = w.numbers.clone();
        int half = w.list == null ? 0 : w.list.half;
        Sections.run(() -> {
            for (int i = 0; i < w.numbers.length; i++) {
                w.numbers[i] += 3;
                Stores.element(w.numbers, i);
            }
            if (w.list != null) {
                DirectPool.set(w.list, "half", random.nextInt());
            }
            UndoLog.open(DurableGraph.pool(), DurableGraph.allocator());
        });
        System.arraycopy(old, 0, w.numbers, 0, old.length);
        if (w.list != null) {
            w.list.half = half;
        }
        done();
    }

    private void volatileReference(Object o, String field, Object v) {
        next();
        long offset = DirectPool.offset(o, field);
        int token = LockedStores.lock(o, offset, v);
        LockedStores.mirrorRef(o, offset, v);
        DirectPool.U.putReferenceVolatile(o, offset, v);
        LockedStores.unlock(token);
        done();
    }

    private void volatileLong(Object o, String field, long v) {
        next();
        DirectPool.setVolatile(o, field, v);
        done();
    }

    private void section() {
        next();
        int kinds = 1 + random.nextInt(6);
        Sections.run(() -> {
            for (int k = 0; k < kinds; k++) {
                inSection(random.nextInt(8));
            }
        });
        done();
    }

    private void inSection(int what) {
        switch (what) {
            case 0:
                tick++;
                DirectPool.set(w.first, "value", tick);
                DirectPool.set(w.second, "value", tick);
                break;
            case 1:
                DirectPool.set(w, "list", node());
                break;
            case 2:
                if (w.list != null) {
                    DirectPool.set(w, "list", (Object) w.list.next);
                }
                break;
            case 3:
                int from = random.nextInt(w.bytes.length);
                for (int i = from; i < w.bytes.length; i++) {
                    w.bytes[i]++;
                }
                Stores.range(w.bytes, from, w.bytes.length - from);
                break;
            case 4:
                for (int i = 0; i < w.numbers.length; i++) {
                    w.numbers[i] += 3;
                    Stores.element(w.numbers, i);
                }
                break;
            case 5:
                if (w.list != null) {
                    DirectPool.set(w.list, "half", random.nextInt());
                }
                break;
            case 6:
                DirectPool.set(w.slots, random.nextInt(w.slots.length), payload());
                break;
            default:
                if (random.nextInt(3) == 0) {
                    Collector.collect();
                }
        }
    }
}
