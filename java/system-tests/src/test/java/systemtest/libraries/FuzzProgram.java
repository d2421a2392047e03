package systemtest.libraries;

import io.towa.DurableRoot;
import io.towa.Towa;
import io.towa.TowaOptions;
import java.nio.file.Path;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Collection;
import java.util.HashMap;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.TreeMap;
import java.util.TreeSet;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ConcurrentLinkedDeque;
import java.util.concurrent.ConcurrentSkipListMap;
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.concurrent.LinkedBlockingDeque;
import java.util.function.Supplier;

/**
 * Random graphs of maps and collections of the JDK and of libraries, nested in each other, with random operations on them. The same operations go to a twin that is not
 * durable; after each restart both must be equal. Most restarts are of the pool in one program: a JVM of its own for each would take a hundred times as long. A further
 * run of the program goes on where the last one ended, and makes the twin anew by the same operations.
 */
final class FuzzProgram {
    @DurableRoot
    private static List<Object> root;

    private static final int ROOTS = 4;
    /** Rounds that a graph lives. */
    private static final int LIFE = 20;
    private static final int DEEPEST = 3;

    private static final List<Supplier<Map<Object, Object>>> MAPS = List.of(HashMap::new, LinkedHashMap::new, ConcurrentHashMap::new, FuzzProgram::treeMap,
        () -> new ConcurrentSkipListMap<>(FuzzKeys.ORDER), com.google.common.collect.HashBiMap::create,
        org.eclipse.collections.impl.map.mutable.UnifiedMap::new, org.apache.commons.collections4.map.HashedMap::new,
        org.apache.commons.collections4.map.LinkedMap::new, it.unimi.dsi.fastutil.objects.Object2ObjectOpenHashMap::new,
        it.unimi.dsi.fastutil.objects.Object2ObjectLinkedOpenHashMap::new, gnu.trove.map.hash.THashMap::new,
        org.agrona.collections.Object2ObjectHashMap::new, FuzzProgram::nonBlocking, FuzzProgram::enumMap);
    private static final List<Supplier<Collection<Object>>> COLLECTIONS = List.of(ArrayList::new, ArrayDeque::new, HashSet::new, LinkedHashSet::new,
        () -> new TreeSet<>(FuzzKeys.ORDER), ConcurrentLinkedDeque::new, CopyOnWriteArrayList::new, LinkedBlockingDeque::new,
        org.eclipse.collections.impl.list.mutable.FastList::new, org.eclipse.collections.impl.set.mutable.UnifiedSet::new,
        org.apache.commons.collections4.list.TreeList::new, it.unimi.dsi.fastutil.objects.ObjectOpenHashSet::new,
        it.unimi.dsi.fastutil.objects.ObjectArrayList::new, gnu.trove.set.hash.THashSet::new, kotlin.collections.ArrayDeque::new);

    private FuzzProgram() {}

    @SuppressWarnings({"unchecked", "rawtypes"})
    private static Map<Object, Object> enumMap() {
        return (Map) new java.util.EnumMap(FuzzKeys.constants()[0].getDeclaringClass());
    }

    /** Its iterator asks for each key, so it is refused when a key's hash code changes. */
    private static Map<Object, Object> nonBlocking() {
        return FuzzKeys.application == null ? new org.jctools.maps.NonBlockingHashMap<>() : new HashMap<>();
    }

    private static Map<Object, Object> treeMap() {
        return new TreeMap<>(FuzzKeys.ORDER);
    }

    /** Applies the same random operations to two graphs that are equal: both are given the same seeds. */
    private static final class Operations {
        private final Random random;

        Operations(long seed) {
            random = new Random(seed);
        }

        Object make(int depth) {
            if (depth < DEEPEST && random.nextInt(4) == 0) {
                return structure();
            }
            return FuzzKeys.value(random);
        }

        Object structure() {
            return random.nextBoolean() ? MAPS.get(random.nextInt(MAPS.size())).get() : COLLECTIONS.get(random.nextInt(COLLECTIONS.size())).get();
        }

        @SuppressWarnings("unchecked")
        void change(Object o, int depth) {
            if (o instanceof Map<?, ?> m) {
                change((Map<Object, Object>) m, depth);
            } else if (o instanceof Collection<?> c) {
                change((Collection<Object>) c, depth);
            }
        }

        private void change(Map<Object, Object> m, int depth) {
            Object key = m instanceof java.util.EnumMap ? FuzzKeys.constants()[random.nextInt(FuzzKeys.constants().length)] : FuzzKeys.key(random);
            // A two-way map has each value once.
            boolean unique = m instanceof com.google.common.collect.BiMap;
            switch (random.nextInt(8)) {
                case 0, 1, 2 -> m.put(key, unique ? only(key) : make(depth + 1));
                case 3 -> m.remove(key);
                case 4 -> m.computeIfAbsent(key, k -> unique ? only(k) : "computed " + k);
                case 5 -> m.merge(key, unique ? only(key) : "merged", (was, now) -> was);
                case 6 -> within(m.values(), depth);
                default -> {
                    if (random.nextInt(50) == 0) {
                        m.clear();
                    }
                }
            }
        }

        /** A value that no other key has. */
        private static String only(Object key) {
            return FuzzKeys.text(key);
        }

        private void change(Collection<Object> c, int depth) {
            switch (random.nextInt(7)) {
                // Sets hold keys: what changes cannot be one.
                case 0, 1, 2 -> c.add(c instanceof java.util.Set ? FuzzKeys.key(random) : make(depth + 1));
                case 3 -> c.remove(FuzzKeys.key(random));
                case 4, 5 -> within(c, depth);
                default -> {
                    if (random.nextInt(50) == 0) {
                        c.clear();
                    }
                }
            }
        }

        /** Changes one of the structures inside: which, may not depend on an order that hash codes decide. */
        private void within(Collection<Object> all, int depth) {
            Class<?> map = MAPS.get(random.nextInt(MAPS.size())).get().getClass();
            Class<?> collection = COLLECTIONS.get(random.nextInt(COLLECTIONS.size())).get().getClass();
            long seed = random.nextLong();
            for (Object o : all) {
                if (o.getClass() == map || o.getClass() == collection) {
                    new Operations(seed).change(o, depth + 1);
                }
            }
        }
    }

    private static void operate(List<Object> graph, long seed, int operations) {
        Operations all = new Operations(seed);
        for (int i = 0; i < operations; i++) {
            int at = all.random.nextInt(ROOTS);
            if (all.random.nextInt(200) == 0) {
                graph.set(at, all.structure());
            }
            all.change(graph.get(at), 0);
        }
    }

    private static List<Object> graph(long seed) {
        Operations all = new Operations(seed);
        List<Object> graph = new ArrayList<>();
        while (graph.size() < ROOTS) {
            graph.add(all.structure());
        }
        return graph;
    }

    /** The twin as it is before a round. */
    private static List<Object> twin(long first, int round, int operations) {
        int begin = round / LIFE * LIFE;
        List<Object> twin = graph(first + begin);
        for (int r = begin; r < round; r++) {
            operate(twin, first + r, operations);
        }
        return twin;
    }

    /** The classes of this round: the program's keys are of these from now on. */
    private static TowaOptions next(TowaOptions options, FuzzVersions versions, int round) {
        String was = versions.of(Math.max(0, round - 1)).thing();
        FuzzVersions.Version now = versions.of(round);
        FuzzKeys.application = now.application();
        return was.equals(now.thing()) ? options.withLoader(now.loader()) : options.withLoader(now.loader()).withRenamed(Map.of(was, now.thing()));
    }

    /** Arguments: pool, seed, first round, round behind the last, operations a round; "versions": of classes of the program's own, at each round others. */
    public static void main(String[] args) {
        FuzzVersions versions = args.length > 5 ? new FuzzVersions(Long.parseLong(args[1])) : null;
        long first = Long.parseLong(args[1]);
        int from = Integer.parseInt(args[2]);
        int to = Integer.parseInt(args[3]);
        int operations = Integer.parseInt(args[4]);
        TowaOptions options = TowaOptions.DEFAULT.withCapacity(64 << 20);
        List<Object> twin = null;
        for (int round = from; round < to; round++) {
            long seed = first + round;
            Towa.open(Path.of(args[0]), versions == null ? options : next(options, versions, round));
            // Not before: a class whose hash code is asked for before the pool is open cannot get the one that it had.
            twin = twin == null || versions != null ? twin(first, round, operations) : twin;
            if (round % LIFE == 0) {
                root = graph(seed);
                twin = graph(seed);
            }
            String difference = FuzzKeys.difference(twin, root);
            if (difference == null && !Towa.verify().isEmpty()) {
                difference = "verify: " + Towa.verify();
            }
            if (difference != null) {
                System.out.println("BROKEN: seed " + first + ", round " + round + ": " + difference);
                Runtime.getRuntime().halt(1);
            }
            operate(root, seed, operations);
            operate(twin, seed, operations);
            if (round + 1 < to) {
                Towa.close();
                // What the program had is not what comes back.
                root = null;
            }
        }
        System.out.println("rounds " + from + " to " + to);
        Runtime.getRuntime().halt(0);
    }
}
