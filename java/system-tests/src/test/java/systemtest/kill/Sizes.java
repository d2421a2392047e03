package systemtest.kill;

import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.BitSet;
import java.util.Collection;
import java.util.HashMap;
import java.util.Hashtable;
import java.util.IdentityHashMap;
import java.util.LinkedHashMap;
import java.util.LinkedList;
import java.util.List;
import java.util.Map;
import java.util.Queue;
import java.util.TreeMap;
import java.util.concurrent.ArrayBlockingQueue;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ConcurrentSkipListMap;
import java.util.concurrent.LinkedBlockingDeque;
import java.util.concurrent.LinkedBlockingQueue;

/** Collections of few entries, each of which gets one and loses one again and again: the size of each must be that of its entries. */
final class Sizes {
    private static final Integer[] KEYS = new Integer[8];

    static {
        for (int i = 0; i < KEYS.length; i++) {
            KEYS[i] = i;
        }
    }

    private final List<Map<Integer, String>> maps = List.of(new ConcurrentHashMap<>(), new HashMap<>(), new LinkedHashMap<>(), new TreeMap<>(),
        new Hashtable<>(), new ConcurrentSkipListMap<>(), new IdentityHashMap<>());
    private final List<Queue<Integer>> queues = List.of(new LinkedList<>(), new ArrayDeque<>(), new LinkedBlockingQueue<>(), new LinkedBlockingDeque<>(),
        new ArrayBlockingQueue<>(8));
    private final BitSet bits = new BitSet();

    /** Something comes and something goes, at other places and in another order each time; sometimes all goes. */
    void step(int i) {
        Integer key = KEYS[i % KEYS.length];
        for (Map<Integer, String> m : maps) {
            m.put(key, "value");
            m.remove(KEYS[i * 5 % KEYS.length]);
        }
        for (Queue<Integer> q : queues) {
            q.offer(key);
            if (q instanceof ArrayDeque<Integer> d) {
                // At both ends.
                d.addFirst(key);
                d.pollLast();
            }
            if (q.size() > i % 7) {
                q.poll();
            }
            if (i % 11 == 0) {
                q.clear();
            }
        }
        bits.set(i * 71 % 300);
        bits.clear(i * 43 % 300);
        if (i % 13 == 0) {
            bits.clear();
        }
    }

    /** @return how a collection contradicts itself, or null */
    String check() {
        for (Map<Integer, String> m : maps) {
            int n = 0;
            for (Integer key : m.keySet()) {
                n++;
                // IdentityHashMap: keys come back as they were.
                if (!m.containsKey(key)) {
                    return m.getClass() + " does not find " + key;
                }
            }
            if (m.size() != n || m.isEmpty() != (n == 0)) {
                return m.getClass() + " has " + n + " entries and says " + m.size() + ", empty: " + m.isEmpty();
            }
        }
        for (Queue<Integer> q : queues) {
            String wrong = check(q);
            if (wrong != null) {
                return wrong;
            }
        }
        int last = bits.length();
        return bits.isEmpty() != (bits.cardinality() == 0) || last > 0 && !bits.get(last - 1) ? "BitSet of " + bits + " has length " + last : null;
    }

    private static String check(Collection<Integer> q) {
        List<Integer> all = new ArrayList<>();
        for (Integer e : q) {
            all.add(e);
        }
        if (q.size() != all.size() || q.isEmpty() != all.isEmpty() || all.contains(null)) {
            return q.getClass() + " has " + all + " and says " + q.size() + ", empty: " + q.isEmpty();
        }
        Integer first = ((Queue<Integer>) q).peek();
        return all.isEmpty() ? first == null ? null : q.getClass() + " begins with " + first + " and is empty"
            : all.get(0).equals(first) ? null : q.getClass() + " begins with " + first + " and has " + all;
    }
}
