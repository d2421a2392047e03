package systemtest.libraries;

import static systemtest.libraries.Structure.collection;
import static systemtest.libraries.Structure.map;
import static systemtest.libraries.Structure.of;
import static systemtest.libraries.Structure.value;

import com.carrotsearch.hppc.IntArrayList;
import com.carrotsearch.hppc.cursors.IntObjectCursor;
import gnu.trove.map.hash.THashMap;
import gnu.trove.map.hash.TIntObjectHashMap;
import gnu.trove.set.hash.THashSet;
import it.unimi.dsi.fastutil.ints.Int2ObjectAVLTreeMap;
import it.unimi.dsi.fastutil.ints.Int2ObjectOpenHashMap;
import it.unimi.dsi.fastutil.longs.LongOpenHashSet;
import it.unimi.dsi.fastutil.objects.Object2IntOpenHashMap;
import it.unimi.dsi.fastutil.objects.Object2ObjectArrayMap;
import it.unimi.dsi.fastutil.objects.Object2ObjectLinkedOpenHashMap;
import it.unimi.dsi.fastutil.objects.Object2ObjectRBTreeMap;
import it.unimi.dsi.fastutil.objects.ObjectHeapPriorityQueue;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.function.Supplier;
import org.agrona.collections.Int2ObjectHashMap;
import org.agrona.collections.Object2IntHashMap;
import org.eclipse.collections.api.factory.Maps;
import org.eclipse.collections.impl.bag.mutable.HashBag;
import org.eclipse.collections.impl.list.mutable.FastList;
import org.eclipse.collections.impl.map.mutable.ConcurrentHashMap;
import org.eclipse.collections.impl.map.mutable.UnifiedMap;
import org.eclipse.collections.impl.map.mutable.primitive.IntObjectHashMap;
import org.eclipse.collections.impl.map.mutable.primitive.ObjectIntHashMap;
import org.eclipse.collections.impl.map.sorted.mutable.TreeSortedMap;
import org.eclipse.collections.impl.multimap.list.FastListMultimap;
import org.eclipse.collections.impl.set.mutable.UnifiedSet;
import org.roaringbitmap.RoaringBitmap;

/** Eclipse Collections, fastutil, HPPC, Trove, Agrona, RoaringBitmap. */
final class Primitives {
    private Primitives() {}

    private static Structure byInt(String name, Supplier<? extends Map<Integer, String>> make) {
        return of(name, make::get, m -> {
            for (int i = 0; i < 1000; i++) {
                m.put(i, "value " + i);
            }
            for (int i = 0; i < 1000; i += 3) {
                m.remove(i);
            }
        }, m -> m.put(-1, "more"));
    }

    static List<Structure> eclipse() {
        return List.of(
            map("UnifiedMap", UnifiedMap::new),
            collection("UnifiedSet", UnifiedSet::new),
            collection("FastList", FastList::new),
            map("ConcurrentHashMap", ConcurrentHashMap::newMap),
            map("TreeSortedMap", TreeSortedMap::new),
            of("IntObjectHashMap", IntObjectHashMap<String>::new, m -> {
                for (int i = 0; i < 1000; i++) {
                    m.put(i, "value " + i);
                }
                for (int i = 0; i < 1000; i += 3) {
                    m.remove(i);
                }
            }, m -> m.put(-5, "more")),
            of("ObjectIntHashMap", ObjectIntHashMap<String>::new, m -> {
                for (int i = 0; i < 1000; i++) {
                    m.put("key " + i, i);
                }
            }, m -> m.addToValue("key 7", 4)).<ObjectIntHashMap<String>>shown(m -> m.size() + " " + m.get("key 7") + Content.of(m.keySet())),
            of("HashBag", HashBag<String>::new, m -> {
                for (int i = 0; i < 1000; i++) {
                    m.add("element " + i % 30);
                }
            }, m -> m.add("more")).<HashBag<String>>shown(b -> b.size() + Content.of(b.toSet())),
            of("FastListMultimap", FastListMultimap<String, Integer>::new, m -> m.put("a", 1), m -> m.put("a", 2)),
            value("Maps.immutable", () -> Maps.immutable.of("a", 1, "b", 2)),
            of("IntArrayList", org.eclipse.collections.impl.list.mutable.primitive.IntArrayList::new, l -> l.addAll(1, 2, 3), l -> l.add(4)));
    }

    static List<Structure> fastutil() {
        return List.of(
            map("Object2IntOpenHashMap", Object2IntOpenHashMap::new),
            byInt("Int2ObjectOpenHashMap", Int2ObjectOpenHashMap::new),
            byInt("Int2ObjectAVLTreeMap", Int2ObjectAVLTreeMap::new),
            of("IntArrayList", it.unimi.dsi.fastutil.ints.IntArrayList::new, l -> l.add(5), l -> l.add(4)),
            of("LongOpenHashSet", LongOpenHashSet::new, s -> s.add(5L), s -> s.add(1L << 40)),
            map("Object2ObjectRBTreeMap", Object2ObjectRBTreeMap::new),
            map("Object2ObjectLinkedOpenHashMap", Object2ObjectLinkedOpenHashMap::new),
            of("Object2ObjectArrayMap", Object2ObjectArrayMap<String, Integer>::new, m -> m.put("a", 1), m -> m.put("b", 2)),
            of("ObjectHeapPriorityQueue", ObjectHeapPriorityQueue<String>::new, q -> {
                for (int i = 0; i < 10; i++) {
                    q.enqueue("element " + i);
                }
            }, q -> q.enqueue("a")).<ObjectHeapPriorityQueue<String>>shown(q -> q.size() + " " + q.first()));
    }

    static List<Structure> others() {
        return List.of(
            of("HPPC IntObjectHashMap", com.carrotsearch.hppc.IntObjectHashMap<String>::new, m -> {
                for (int i = 0; i < 100; i++) {
                    m.put(i, "value " + i);
                }
            }, m -> m.put(1000, "more")).<com.carrotsearch.hppc.IntObjectHashMap<String>>shown(m -> {
                TreeMap<Integer, String> all = new TreeMap<>();
                for (IntObjectCursor<String> e : m) {
                    all.put(e.key, m.get(e.key));
                }
                return all.toString();
            }),
            of("HPPC IntArrayList", IntArrayList::new, l -> l.add(5, 6, 7), l -> l.add(8)),
            byInt("Agrona Int2ObjectHashMap", Int2ObjectHashMap::new),
            of("Agrona Object2IntHashMap", () -> new Object2IntHashMap<String>(-1), m -> m.put("a", 1), m -> m.put("b", 4)),
            of("Trove TIntObjectHashMap", TIntObjectHashMap<String>::new, m -> m.put(5, "a"), m -> m.put(1000, "more")),
            map("Trove THashMap", THashMap::new),
            collection("Trove THashSet", THashSet::new),
            of("RoaringBitmap", RoaringBitmap::new, b -> {
                for (int i = 0; i < 100_000; i += 3) {
                    b.add(i);
                }
            }, b -> b.add(1)));
    }
}
