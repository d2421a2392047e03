package systemtest.libraries;

import static systemtest.libraries.Structure.collection;
import static systemtest.libraries.Structure.map;
import static systemtest.libraries.Structure.of;
import static systemtest.libraries.Structure.value;

import java.util.HashMap;
import java.util.List;
import java.util.Queue;
import org.apache.commons.collections4.bag.HashBag;
import org.apache.commons.collections4.bidimap.DualHashBidiMap;
import org.apache.commons.collections4.bidimap.DualTreeBidiMap;
import org.apache.commons.collections4.list.CursorableLinkedList;
import org.apache.commons.collections4.list.TreeList;
import org.apache.commons.collections4.map.Flat3Map;
import org.apache.commons.collections4.map.HashedMap;
import org.apache.commons.collections4.map.LRUMap;
import org.apache.commons.collections4.map.LinkedMap;
import org.apache.commons.collections4.map.ListOrderedMap;
import org.apache.commons.collections4.multimap.ArrayListValuedHashMap;
import org.apache.commons.collections4.queue.CircularFifoQueue;
import org.apache.commons.collections4.trie.PatriciaTrie;
import org.apache.commons.lang3.Range;
import org.apache.commons.lang3.builder.EqualsBuilder;
import org.apache.commons.lang3.mutable.MutableInt;
import org.apache.commons.lang3.time.FastDateFormat;
import org.apache.commons.lang3.tuple.Pair;
import org.apache.commons.lang3.tuple.Triple;
import org.apache.commons.math3.complex.Complex;
import org.apache.commons.math3.fraction.Fraction;
import org.apache.commons.math3.linear.Array2DRowRealMatrix;
import org.apache.commons.math3.stat.descriptive.DescriptiveStatistics;
import org.apache.commons.text.TextStringBuilder;
import org.apache.logging.log4j.Level;
import org.apache.lucene.util.BytesRef;
import org.apache.lucene.util.FixedBitSet;

/** Commons, Log4j, Lucene. */
final class Apache {
    private Apache() {}

    private static void fill(Queue<String> q) {
        for (int i = 0; i < 100; i++) {
            q.add("element " + i);
        }
    }

    static List<Structure> all() {
        return List.of(
            map("HashedMap", HashedMap::new),
            map("LinkedMap", LinkedMap::new),
            map("LRUMap", () -> new LRUMap<>(5000)),
            map("Flat3Map", Flat3Map::new),
            map("PatriciaTrie", PatriciaTrie::new),
            map("DualHashBidiMap", DualHashBidiMap::new),
            map("DualTreeBidiMap", DualTreeBidiMap::new),
            map("ListOrderedMap", () -> ListOrderedMap.listOrderedMap(new HashMap<>())),
            collection("TreeList", TreeList::new),
            collection("CursorableLinkedList", CursorableLinkedList::new),
            collection("HashBag", HashBag::new).<HashBag<String>>shown(b -> b.size() + Content.of(b.uniqueSet())),
            of("ArrayListValuedHashMap", ArrayListValuedHashMap<String, Integer>::new, m -> {
                for (int i = 0; i < 100; i++) {
                    m.put("key " + i % 7, i);
                }
            }, m -> m.put("more", 2)),
            of("CircularFifoQueue", () -> new CircularFifoQueue<String>(7), Apache::fill, q -> q.add("more")),
            value("Pair", () -> Pair.of("a", 1)),
            value("Triple", () -> Triple.of("a", 1, List.of(2))),
            value("Range", () -> Range.of(1, 5)),
            of("MutableInt", MutableInt::new, n -> n.add(5), MutableInt::increment),
            value("FastDateFormat", () -> FastDateFormat.getInstance("yyyy-MM-dd")),
            of("EqualsBuilder", EqualsBuilder::new, b -> b.append(1, 1), b -> b.append(1, 2)).<EqualsBuilder>shown(b -> "" + b.isEquals()),
            of("TextStringBuilder", TextStringBuilder::new, b -> b.append("text"), b -> b.appendSeparator(",").append(5)),
            value("Complex", () -> new Complex(1, 2)),
            value("Complex.I", () -> Complex.I),
            value("Fraction", () -> new Fraction(1, 3)),
            of("Array2DRowRealMatrix", () -> new Array2DRowRealMatrix(2, 2), m -> m.setEntry(0, 1, 5), m -> m.addToEntry(1, 1, 2)),
            of("DescriptiveStatistics", DescriptiveStatistics::new, d -> d.addValue(5), d -> d.addValue(7)).<DescriptiveStatistics>shown(d -> d.getN() + " " + d.getMean()),
            value("Level", () -> Level.WARN),
            value("BytesRef", () -> new BytesRef("text")),
            of("FixedBitSet", () -> new FixedBitSet(1000), b -> b.set(5), b -> b.set(7, 70)).<FixedBitSet>shown(b -> b.cardinality() + " " + b.nextSetBit(6)));
    }
}
