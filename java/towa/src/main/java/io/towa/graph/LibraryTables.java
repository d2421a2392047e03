package io.towa.graph;

import io.towa.PoolException;
import io.towa.PoolException.Reason;
import java.util.ArrayList;
import java.util.Collection;
import java.util.HashMap;
import java.util.HashSet;
import java.util.Hashtable;
import java.util.IdentityHashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Queue;
import java.util.Set;
import java.util.TreeMap;
import java.util.TreeSet;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ConcurrentSkipListMap;
import java.util.concurrent.ConcurrentSkipListSet;

/**
 * Makes tables of libraries anew whose keys have another hash code, because their class has changed since the pool was saved: a record has one more
 * component.
 *
 * <p>Nothing is known of how such a table is made, so its own methods do it: a table that does not find one of its keys, or may not find one that is equal, is
 * emptied and gets its entries again. That is done before the graph is written in its new form, in DRAM, so a crash leaves the pool as it was, and so does a refusal: a table that cannot change, or
 * two keys that have become equal.
 *
 * <p>A table is a {@link Map} or a {@link Set}, or a collection that is neither list nor queue, and no view of one that lies within. Others do not tell what they are.
 */
final class LibraryTables {
    /** Tables whose keys contain tables of their own need as many passes as they are deep. */
    private static final int PASSES = 16;
    private static final Class<?>[] JDK = {HashMap.class, Hashtable.class, ConcurrentHashMap.class, IdentityHashMap.class, TreeMap.class,
        ConcurrentSkipListMap.class, HashSet.class, TreeSet.class, ConcurrentSkipListSet.class};

    private LibraryTables() {}

    static boolean isOne(Class<?> c) {
        Class<?> around = c.getEnclosingClass();
        // A view of a table that has the entries itself.
        if (c.getClassLoader() == null || around != null && (Map.class.isAssignableFrom(around) || Collection.class.isAssignableFrom(around))) {
            return false;
        }
        for (int i = 0; i < JDK.length; i++) {
            if (JDK[i].isAssignableFrom(c)) {
                return false;
            }
        }
        return Map.class.isAssignableFrom(c) || Set.class.isAssignableFrom(c)
            || Collection.class.isAssignableFrom(c) && !List.class.isAssignableFrom(c) && !Queue.class.isAssignableFrom(c);
    }

    /** @param pool what messages begin with */
    static void look(String pool, List<Object> suspects) {
        List<Object> all = new ArrayList<>();
        // Maps first: sets may be views of them.
        for (boolean map : new boolean[] {true, false}) {
            for (int i = 0; i < suspects.size(); i++) {
                Object o = suspects.get(i);
                if (isOne(o.getClass()) && o instanceof Map == map) {
                    all.add(o);
                }
            }
        }
        for (int pass = 0; pass < PASSES; pass++) {
            boolean done = false;
            PoolException refused = null;
            for (int i = 0; i < all.size(); i++) {
                Object table = all.get(i);
                Object key = lost(table);
                Object first = key == null && pass == 0 ? mayHaveChanged(table) : key;
                if (first != null) {
                    PoolException e = makeAnew(pool, table, first);
                    done |= e == null;
                    // One that finds its keys and cannot change is right as it is.
                    refused = e != null && key != null ? e : refused;
                }
            }
            if (!done && refused == null) {
                return;
            }
            // One that cannot change may lead to one that can: that has been made anew in this pass, or cannot change either.
            if (!done) {
                throw refused;
            }
        }
        throw new PoolException(Reason.CHANGED_CLASS, pool + "tables of libraries do not find their keys, the hash codes of which have changed with their classes, "
            + "even when they are made anew; open the pool with the classes as they were");
    }

    /** @return a key that a table has and does not find, or null */
    private static Object lost(Object table) {
        try {
            boolean map = table instanceof Map;
            for (Object key : map ? ((Map<?, ?>) table).keySet() : (Collection<?>) table) {
                if (key != null && !(map ? ((Map<?, ?>) table).containsKey(key) : ((Collection<?>) table).contains(key))) {
                    return key;
                }
            }
        } catch (RuntimeException e) {
            // It does not answer: it is no table, or was as broken before.
        }
        return null;
    }

    /**
     * A table that remembers the hash codes of its keys may find a key itself, and not one that is equal to it.
     *
     * @return a key of which a changed class may be part, or null
     */
    private static Object mayHaveChanged(Object table) {
        try {
            for (Object key : table instanceof Map ? ((Map<?, ?>) table).keySet() : (Collection<?>) table) {
                boolean plain = key == null || key instanceof Enum || key.getClass().getClassLoader() == null
                    && !(key instanceof Collection) && !(key instanceof Map) && !(key instanceof Map.Entry) && !(key instanceof Optional);
                if (!plain) {
                    return key;
                }
            }
        } catch (RuntimeException e) {
            // As in lost.
        }
        return null;
    }

    /**
     * @return null, or that it cannot change: then it has not
     * @throws PoolException it has lost an entry
     */
    private static PoolException makeAnew(String pool, Object table, Object key) {
        boolean begun = false;
        String why;
        try {
            Entries all = Entries.of(table);
            if (all.keys.size() != all.size) {
                // Its iterator asks for each key.
                throw refusal(pool, table, key, "it does not give all of its entries");
            }
            all.clear();
            begun = true;
            all.putAll();
            if (Entries.of(table).size == all.size) {
                return null;
            }
            why = "two of its keys are equal now";
        } catch (PoolException e) {
            throw e;
        } catch (RuntimeException e) {
            why = "it cannot be made anew (" + e + ")";
        }
        PoolException refused = refusal(pool, table, key, why);
        if (begun) {
            throw refused;
        }
        return refused;
    }

    /** What a table gives as its entries; values: null for a set. */
    private record Entries(Object table, int size, List<Object> keys, List<Object> values) {
        static Entries of(Object table) {
            if (!(table instanceof Map<?, ?> m)) {
                return new Entries(table, ((Collection<?>) table).size(), new ArrayList<>((Collection<?>) table), null);
            }
            Entries all = new Entries(table, m.size(), new ArrayList<>(), new ArrayList<>());
            for (Map.Entry<?, ?> e : m.entrySet()) {
                all.keys.add(e.getKey());
                all.values.add(e.getValue());
            }
            return all;
        }

        void clear() {
            if (values == null) {
                ((Collection<?>) table).clear();
            } else {
                ((Map<?, ?>) table).clear();
            }
        }

        @SuppressWarnings("unchecked")
        void putAll() {
            for (int i = 0; i < keys.size(); i++) {
                if (values == null) {
                    ((Collection<Object>) table).add(keys.get(i));
                } else {
                    ((Map<Object, Object>) table).put(keys.get(i), values.get(i));
                }
            }
        }
    }

    static PoolException refusal(String pool, Object table, Object key, String why) {
        return new PoolException(Reason.CHANGED_CLASS, pool + "a " + table.getClass().getName() + " has keys of class " + key.getClass().getName()
            + ", whose hash codes have changed with a class, and " + why + "; open the pool with the class as it was and move the entries to another table, or let "
            + "equals() and hashCode() use the same fields as before");
    }
}
