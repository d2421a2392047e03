package systemtest.soak;

import java.util.Collection;
import java.util.Collections;
import java.util.Comparator;
import java.util.EnumMap;
import java.util.HashMap;
import java.util.Hashtable;
import java.util.IdentityHashMap;
import java.util.Iterator;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.NavigableMap;
import java.util.Properties;
import java.util.Random;
import java.util.TreeMap;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ConcurrentSkipListMap;
import java.util.function.Supplier;

/** Every map of java.util and java.util.concurrent. */
final class Maps {
    private Maps() {}

    static void addTo(Collection<Subject<?>> all) {
        map(all, "HashMap", false, HashMap::new);
        map(all, "LinkedHashMap", false, LinkedHashMap::new);
        map(all, "LinkedHashMap by access", false, () -> new LinkedHashMap<>(16, 0.75f, true));
        map(all, "TreeMap", false, TreeMap::new);
        map(all, "TreeMap reversed", false, () -> new TreeMap<>(Comparator.reverseOrder()));
        map(all, "Hashtable", true, Hashtable::new);
        map(all, "ConcurrentHashMap", true, ConcurrentHashMap::new);
        map(all, "ConcurrentHashMap small", true, () -> new ConcurrentHashMap<>(1));
        map(all, "ConcurrentSkipListMap", true, ConcurrentSkipListMap::new);
        map(all, "synchronizedMap", true, () -> Collections.synchronizedMap(new HashMap<>()));
        map(all, "checkedMap", false, () -> Collections.checkedMap(new TreeMap<>(), String.class, Object.class));
        all.add(new Subject<Properties>("Properties", true, Properties::new, (p, r) -> {
            if (r.nextInt(4) == 0) {
                p.remove(Values.key(r));
            } else {
                p.setProperty(Values.key(r), "v" + r.nextInt());
            }
        }, Maps::check));
        all.add(new Subject<EnumMap<Values.Colour, Object>>("EnumMap", false, () -> new EnumMap<>(Values.Colour.class), (m, r) -> {
            Values.Colour c = Values.Colour.values()[r.nextInt(3)];
            if (r.nextInt(4) == 0) {
                m.remove(c);
            } else {
                m.put(c, Values.any(r));
            }
        }, Maps::check));
        all.add(new Subject<IdentityHashMap<Object, Object>>("IdentityHashMap", false, IdentityHashMap::new, Maps::identity, Maps::check));
        all.add(new Subject<HashMap<Object, Object>>("HashMap by identity", false, HashMap::new, Maps::identity, Maps::check));
        all.add(new Subject<HashMap<Object, Object>>("HashMap with trees", false, HashMap::new, (m, r) -> {
            // All in a few bins, so that these become trees and lists again.
            Clash k = new Clash(r.nextInt(60));
            if (r.nextInt(3) == 0) {
                m.remove(k);
            } else {
                m.put(k, r.nextInt());
            }
        }, Maps::check));
        all.add(new Subject<ConcurrentHashMap<Object, Object>>("ConcurrentHashMap with trees", true, ConcurrentHashMap::new, (m, r) -> {
            Clash k = new Clash(r.nextInt(60));
            if (r.nextInt(3) == 0) {
                m.remove(k);
            } else {
                m.merge(k, r.nextInt(), (a, b) -> b);
            }
        }, Maps::check));
    }

    record Clash(int n) implements Comparable<Clash> {
        @Override
        public int hashCode() {
            return n % 3;
        }

        @Override
        public int compareTo(Clash o) {
            return Integer.compare(n, o.n);
        }
    }

    private static void identity(Map<Object, Object> m, Random r) {
        if (m.size() > 60) {
            Iterator<Object> it = m.keySet().iterator();
            for (int i = r.nextInt(20); i >= 0; i--) {
                it.next();
            }
            it.remove();
        } else {
            m.put(new Values.Key(r.nextInt()), Values.any(r));
        }
    }

    private static void map(Collection<Subject<?>> all, String name, boolean shared, Supplier<Map<String, Object>> make) {
        all.add(new Subject<>(name, shared, make, (m, r) -> operate(m, r, shared), Maps::check));
    }

    private static void operate(Map<String, Object> m, Random r, boolean shared) {
        String k = Values.key(r);
        switch (r.nextInt(18)) {
            case 0: m.remove(k); break;
            case 1: m.putIfAbsent(k, Values.any(r)); break;
            case 2: m.computeIfAbsent(k, x -> Values.any(r)); break;
            case 3: m.computeIfPresent(k, (x, old) -> r.nextBoolean() ? null : Values.any(r)); break;
            case 4: m.compute(k, (x, old) -> old == null ? Values.any(r) : null); break;
            case 5: m.merge(k, "one", (a, b) -> a + "+"); break;
            case 6: m.replace(k, Values.any(r)); break;
            case 7: m.get(k); break;
            case 8:
                if (r.nextInt(50) == 0) {
                    m.clear();
                }
                break;
            case 9: m.putAll(Map.of(k, Values.any(r), "key-pair", "pair")); break;
            case 10: m.keySet().remove(k); break;
            case 11: m.remove(k, "one"); break;
            case 12:
                if (m instanceof NavigableMap<String, Object> n && r.nextInt(4) == 0) {
                    n.pollFirstEntry();
                }
                break;
            case 13:
                if (!shared && r.nextInt(8) == 0) {
                    for (Map.Entry<String, Object> e : m.entrySet()) {
                        if (r.nextInt(4) == 0) {
                            e.setValue(Values.any(r));
                        }
                    }
                }
                break;
            case 14:
                if (r.nextInt(16) == 0) {
                    m.replaceAll((x, old) -> r.nextInt(8) == 0 ? Values.any(r) : old);
                }
                break;
            default: m.put(k, Values.any(r));
        }
        if (m.size() > 400) {
            throw new AssertionError(m.size() + " keys of 96");
        }
    }

    /** Each key that iteration shows must be found. Values change, those that are texts or numbers are shown. */
    static String check(Map<?, ?> m) {
        StringBuilder all = new StringBuilder();
        int n = 0;
        Object first = null;
        for (Map.Entry<?, ?> e : List.copyOf(entries(m))) {
            n++;
            first = e.getKey();
            all.append(e.getKey() instanceof Values.Key k ? k.n : e.getKey()).append('=').append(plain(e.getValue())).append(' ');
            // Looking up must not change what is compared: a map by access would be reordered.
            if (!m.getClass().equals(LinkedHashMap.class) && m.get(e.getKey()) != e.getValue()) {
                throw new AssertionError(m.getClass() + " does not find " + e.getKey());
            }
            if (!m.containsKey(e.getKey())) {
                throw new AssertionError(m.getClass() + " does not know " + e.getKey());
            }
        }
        if (n != m.size()) {
            throw new AssertionError(m.getClass() + " iterates over " + n + " and has " + m.size());
        }
        if (m instanceof NavigableMap<?, ?> nm && n > 0 && nm.lastKey() != first) {
            throw new AssertionError("the last key is not the last");
        }
        return all.toString();
    }

    private static List<Map.Entry<?, ?>> entries(Map<?, ?> m) {
        List<Map.Entry<?, ?>> l = new java.util.ArrayList<>();
        for (Map.Entry<?, ?> e : m.entrySet()) {
            // IdentityHashMap's entries change under way.
            l.add(new java.util.AbstractMap.SimpleEntry<>(e.getKey(), e.getValue()));
        }
        return l;
    }

    static Object plain(Object v) {
        return v instanceof String || v instanceof Number && !(v instanceof java.util.concurrent.atomic.AtomicInteger) || v instanceof Enum ? v
            : v == null ? null : v.getClass().getSimpleName();
    }
}
