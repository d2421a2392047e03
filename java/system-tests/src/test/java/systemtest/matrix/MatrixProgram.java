package systemtest.matrix;

import io.towa.DurableRoot;
import io.towa.OnDemand;
import io.towa.Towa;
import io.towa.TowaOptions;
import java.lang.invoke.MethodHandles;
import java.lang.invoke.VarHandle;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.IdentityHashMap;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.TreeMap;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ConcurrentLinkedDeque;
import java.util.concurrent.ConcurrentSkipListMap;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicLongArray;
import java.util.concurrent.atomic.AtomicReferenceArray;

/**
 * A little of everything, for any virtual machine: {@code MatrixProgram write|read FILE STEPS [virtual]}. What {@code write} printed as its sum, {@code read} in another
 * machine must print.
 */
public final class MatrixProgram {
    @DurableRoot
    private static World world;

    record Pair(String name, long value) {}

    enum Side {
        LEFT,
        RIGHT
    }

    static final class World {
        final Map<String, Object> hash = new HashMap<>();
        final TreeMap<Integer, String> tree = new TreeMap<>();
        final List<Object> list = new ArrayList<>();
        final IdentityHashMap<Object, Integer> identity = new IdentityHashMap<>();
        final ConcurrentHashMap<String, Pair> concurrent = new ConcurrentHashMap<>();
        final ConcurrentSkipListMap<Integer, Side> skip = new ConcurrentSkipListMap<>();
        final ConcurrentLinkedDeque<Object> deque = new ConcurrentLinkedDeque<>();
        final AtomicInteger[] counters = {new AtomicInteger(), new AtomicInteger()};
        final AtomicLongArray longs = new AtomicLongArray(64);
        final AtomicReferenceArray<Object> references = new AtomicReferenceArray<>(64);
        final int[] ints = new int[1000];
        final byte[] bytes = new byte[1000];
        final Object[] objects = new Object[200];
        final StringBuilder text = new StringBuilder();
        final List<OnDemand<List<Object>>> onDemand = new ArrayList<>();
        int plain;
        volatile long shown;
        volatile Pair latest;
        double d;
    }

    private static final VarHandle INTS = MethodHandles.arrayElementVarHandle(int[].class);

    public static void main(String[] args) throws Exception {
        Towa.open(Path.of(args[1]), TowaOptions.DEFAULT.withCapacity(512 << 20));
        if (args[0].equals("write")) {
            if (world == null) {
                world = new World();
            }
            int steps = Integer.parseInt(args[2]);
            boolean virtual = args.length > 3 && args[3].equals("virtual");
            for (int round = 0; round < 2; round++) {
                Thread[] threads = new Thread[virtual ? 20 : 3];
                Throwable[] failed = new Throwable[1];
                for (int t = 0; t < threads.length; t++) {
                    int me = t;
                    int own = steps / threads.length;
                    Runnable body = () -> work(world, me, own, new Random(me));
                    threads[t] = virtual ? Thread.ofVirtual().unstarted(body) : new Thread(body);
                    threads[t].setUncaughtExceptionHandler((thread, e) -> failed[0] = e);
                    threads[t].start();
                }
                for (Thread t : threads) {
                    t.join();
                }
                if (failed[0] != null) {
                    throw new AssertionError("a worker failed", failed[0]);
                }
                List<String> wrong = Towa.verify();
                if (!wrong.isEmpty()) {
                    System.out.println("DIFFERS " + wrong);
                    System.exit(3);
                }
                System.gc();
                Towa.collect();
            }
        }
        List<String> wrong = new ArrayList<>(Towa.verify());
        Towa.collect();
        System.out.println("sum " + sum(world));
        wrong.addAll(Towa.verify());
        System.out.println("verify " + wrong + ", loads " + Towa.metrics().loads());
        if (!wrong.isEmpty()) {
            System.exit(3);
        }
        Towa.close();
        System.out.println("done");
    }

    private static void work(World w, int me, int steps, Random r) {
        for (int i = 0; i < steps; i++) {
            Pair p = new Pair("pair " + r.nextInt(50), r.nextLong());
            w.concurrent.merge("k" + r.nextInt(64), p, (a, b) -> b);
            w.skip.put(r.nextInt(100), r.nextBoolean() ? Side.LEFT : Side.RIGHT);
            w.deque.addLast(p);
            if (w.deque.size() > 50) {
                w.deque.pollFirst();
            }
            w.counters[i & 1].incrementAndGet();
            w.longs.addAndGet(r.nextInt(64), i);
            w.references.set(r.nextInt(64), new Object[] {p, i, new int[] {i}});
            w.latest = p;
            w.shown = p.value();
            INTS.getAndAdd(w.ints, r.nextInt(1000), i);
            synchronized (w) {
                w.hash.put("h" + r.nextInt(80), r.nextBoolean() ? p : Arrays.asList(i, "x"));
                w.tree.put(r.nextInt(100), "t" + i);
                if (i % 5 == 0) {
                    w.tree.remove(r.nextInt(100));
                    w.hash.remove("h" + r.nextInt(80));
                }
                w.list.add(p);
                if (w.list.size() > 60) {
                    w.list.subList(0, 20).clear();
                }
                if (w.identity.size() < 30) {
                    w.identity.put(p, i);
                }
                w.bytes[r.nextInt(1000)]++;
                System.arraycopy(w.bytes, r.nextInt(400), w.bytes, 500, 300);
                if (i % 50 == 0) {
                    Arrays.sort(w.bytes);
                }
                w.objects[r.nextInt(200)] = p;
                w.text.append((char) ('a' + i % 26));
                if (w.text.length() > 300) {
                    w.text.delete(0, 200);
                }
                w.plain++;
                w.d += 0.5;
                if (w.onDemand.size() < 20) {
                    w.onDemand.add(new OnDemand<>(new ArrayList<>(List.of(p, i))));
                } else if (i % 10 == 0) {
                    w.onDemand.get(r.nextInt(20)).get().add(p);
                    w.onDemand.get(r.nextInt(20)).set(new ArrayList<>(List.of("anew", p)));
                }
            }
            if (i % 20 == 0) {
                int n = i;
                // The lock around the section, as the guide has it: the collections' own sections are inside it too.
                synchronized (w) {
                    Towa.atomically(() -> {
                        w.plain += n;
                        w.d -= n;
                    });
                }
            }
        }
    }

    private static String sum(World w) {
        long references = 0;
        for (int i = 0; i < 64; i++) {
            Object[] o = (Object[]) w.references.get(i);
            references = references * 31 + (o == null ? 0 : o[0].hashCode() + (int) o[1] + ((int[]) o[2])[0]);
        }
        long identity = 0;
        for (Map.Entry<Object, Integer> e : w.identity.entrySet()) {
            identity += System.identityHashCode(e.getKey()) * 31L + e.getValue();
            if (!w.identity.containsKey(e.getKey())) {
                throw new AssertionError("not found by identity");
            }
        }
        StringBuilder onDemand = new StringBuilder();
        for (OnDemand<List<Object>> o : w.onDemand) {
            onDemand.append(o.get());
        }
        return onDemand.toString().hashCode() + " " + w.hash.toString().hashCode() + " " + w.tree.hashCode() + " " + w.list.hashCode() + " " + identity + " " + w.concurrent.hashCode() + " "
            + w.skip.toString().hashCode() + " " + w.deque.toString().hashCode() + " " + Arrays.toString(w.counters) + " " + w.longs.toString().hashCode() + " " + references
            + " " + Arrays.hashCode(w.ints) + " " + Arrays.hashCode(w.bytes) + " " + Arrays.hashCode(w.objects) + " " + w.text + " " + w.plain + " " + w.shown + " "
            + w.latest + " " + w.d;
    }
}
