package systemtest.libraries;

import static systemtest.libraries.Structure.collection;
import static systemtest.libraries.Structure.map;
import static systemtest.libraries.Structure.of;
import static systemtest.libraries.Structure.value;

import com.google.common.base.Optional;
import com.google.common.cache.Cache;
import com.google.common.cache.CacheBuilder;
import com.google.common.collect.ArrayListMultimap;
import com.google.common.collect.ArrayTable;
import com.google.common.collect.EvictingQueue;
import com.google.common.collect.HashBasedTable;
import com.google.common.collect.HashBiMap;
import com.google.common.collect.HashMultimap;
import com.google.common.collect.HashMultiset;
import com.google.common.collect.ImmutableBiMap;
import com.google.common.collect.ImmutableListMultimap;
import com.google.common.collect.ImmutableMap;
import com.google.common.collect.ImmutableSet;
import com.google.common.collect.ImmutableSortedMap;
import com.google.common.collect.ImmutableTable;
import com.google.common.collect.LinkedHashMultimap;
import com.google.common.collect.MapMaker;
import com.google.common.collect.MinMaxPriorityQueue;
import com.google.common.collect.Multimap;
import com.google.common.collect.Multiset;
import com.google.common.collect.Range;
import com.google.common.collect.Table;
import com.google.common.collect.TreeMultimap;
import com.google.common.collect.TreeMultiset;
import com.google.common.collect.TreeRangeMap;
import com.google.common.graph.GraphBuilder;
import com.google.common.hash.BloomFilter;
import com.google.common.hash.Funnels;
import com.google.common.util.concurrent.AtomicLongMap;
import com.google.gson.JsonArray;
import com.google.gson.JsonNull;
import com.google.gson.JsonObject;
import com.google.protobuf.ByteString;
import com.google.protobuf.Struct;
import com.google.protobuf.Timestamp;
import com.google.protobuf.Value;
import java.util.List;
import java.util.TreeMap;
import java.util.function.Supplier;

/** Guava, Gson, protocol buffers. */
final class Google {
    private Google() {}

    private static Structure multimap(String name, Supplier<? extends Multimap<String, Integer>> make) {
        return of(name, make::get, m -> {
            for (int i = 0; i < 1000; i++) {
                m.put("key " + i % 10, i);
            }
            m.removeAll("key 3");
        }, m -> m.put("more", 1)).<Multimap<String, Integer>>shown(m -> Content.of(m.asMap()));
    }

    private static Structure multiset(String name, Supplier<? extends Multiset<String>> make) {
        return of(name, make::get, m -> {
            for (int i = 0; i < 1000; i++) {
                m.add("element " + i % 30);
            }
            m.remove("element 3", 5);
        }, m -> m.add("more", 7)).<Multiset<String>>shown(m -> Content.of(m.entrySet()));
    }

    private static Structure table(String name, Supplier<? extends Table<String, String, Integer>> make) {
        return of(name, make::get, t -> {
            for (int i = 0; i < 4; i++) {
                t.put("row " + i % 2, "column " + i / 2, i);
            }
        }, t -> t.put("row 1", "column 0", 7)).<Table<String, String, Integer>>shown(t -> Content.of(t.cellSet()));
    }

    private static ImmutableMap<String, Integer> immutable() {
        ImmutableMap.Builder<String, Integer> b = ImmutableMap.builder();
        for (int i = 0; i < 100; i++) {
            b.put("key " + i, i);
        }
        return b.build();
    }

    static List<Structure> all() {
        List<String> rows = List.of("row 0", "row 1");
        List<String> columns = List.of("column 0", "column 1");
        return List.of(
            map("HashBiMap", HashBiMap::create),
            of("HashBiMap.inverse()", HashBiMap::<String, Integer>create, m -> m.put("a", 1), m -> m.inverse().put(2, "b"))
                .<HashBiMap<String, Integer>>shown(m -> Content.of(m) + Content.of(m.inverse()) + (m.inverse().inverse() == m)),
            multimap("HashMultimap", HashMultimap::create),
            multimap("ArrayListMultimap", ArrayListMultimap::create),
            multimap("LinkedHashMultimap", LinkedHashMultimap::create),
            multimap("TreeMultimap", TreeMultimap::create),
            multiset("HashMultiset", HashMultiset::create),
            multiset("TreeMultiset", TreeMultiset::create),
            table("HashBasedTable", HashBasedTable::create),
            table("ArrayTable", () -> ArrayTable.create(rows, columns)),
            value("ImmutableMap", Google::immutable),
            value("ImmutableSet", () -> ImmutableSet.copyOf(immutable().keySet())),
            value("ImmutableSortedMap", () -> ImmutableSortedMap.copyOf(immutable())),
            value("ImmutableListMultimap", () -> ImmutableListMultimap.of("a", 1, "b", 2)),
            value("ImmutableTable", () -> ImmutableTable.<String, String, Integer>builder().put("a", "b", 1).put("c", "d", 2).build()),
            value("ImmutableBiMap", () -> ImmutableBiMap.of("a", 1, "b", 2)),
            of("TreeRangeMap", TreeRangeMap::<Integer, String>create, m -> m.put(Range.closed(1, 5), "x"), m -> m.put(Range.open(7, 9), "y")),
            of("EvictingQueue", () -> EvictingQueue.<String>create(5), q -> {
                for (int i = 0; i < 9; i++) {
                    q.add("element " + i);
                }
            }, q -> q.add("more")),
            collection("MinMaxPriorityQueue", MinMaxPriorityQueue::create),
            value("Optional", () -> Optional.of("x")),
            value("Optional.absent()", Optional::absent),
            value("Range", () -> Range.atLeast(5)),
            of("Cache", () -> CacheBuilder.newBuilder().maximumSize(100).<String, Integer>build(), c -> {
                for (int i = 0; i < 50; i++) {
                    c.put("key " + i, i);
                }
            }, c -> c.put("more", 1)).<Cache<String, Integer>>shown(c -> new TreeMap<>(c.asMap()).toString()),
            of("BloomFilter", () -> BloomFilter.create(Funnels.integerFunnel(), 100), f -> f.put(5), f -> f.put(7))
                .<BloomFilter<Integer>>shown(f -> "" + f.mightContain(5) + f.mightContain(7) + f.mightContain(9) + f.approximateElementCount()),
            of("MutableGraph", () -> GraphBuilder.undirected().<String>build(), g -> g.putEdge("a", "b"), g -> g.putEdge("b", "c")),
            of("AtomicLongMap", AtomicLongMap::<String>create, m -> m.put("a", 3), m -> m.incrementAndGet("a")),
            map("MapMaker", () -> new MapMaker().makeMap()),
            of("JsonObject", JsonObject::new, o -> {
                o.addProperty("a", 1);
                o.add("n", JsonNull.INSTANCE);
                o.add("array", new JsonArray());
            }, o -> o.addProperty("b", "x")),
            value("Struct", () -> Struct.newBuilder().putFields("a", Value.newBuilder().setNumberValue(5).build()).build()),
            value("Timestamp", () -> Timestamp.newBuilder().setSeconds(5).build()),
            value("Timestamp.getDefaultInstance()", Timestamp::getDefaultInstance),
            value("ByteString", () -> ByteString.copyFromUtf8("hello")));
    }
}
