package io.towa.graph;

import io.towa.PoolException;
import io.towa.PoolException.Reason;
import java.lang.reflect.Modifier;
import java.util.ArrayList;
import java.util.Collection;
import java.util.HashMap;
import java.util.HashSet;
import java.util.Hashtable;
import java.util.IdentityHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import java.util.TreeSet;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ConcurrentSkipListMap;
import java.util.concurrent.ConcurrentSkipListSet;

/**
 * Makes tables of libraries anew that do not find their keys any more, because the class of a key has changed since the pool was saved: a record has one more
 * component.
 *
 * <p>Nothing is known of how such a table is made, so its own methods do it: it is emptied and gets its entries again. That is done before the graph is written in
 * its new form, in DRAM, so a crash leaves the pool as it was, and so does a refusal: of a table that cannot change, or has other entries afterwards.
 *
 * <p>A table is a {@link Map}, a {@link Set}, or a multiset of Guava's, but no view of another one. Other classes do not tell what they are.
 */
final class LibraryTables {
    private static final Class<?>[] JDK = {HashMap.class, Hashtable.class, ConcurrentHashMap.class, IdentityHashMap.class, TreeMap.class,
        ConcurrentSkipListMap.class, HashSet.class, TreeSet.class, ConcurrentSkipListSet.class};
    /** Their iterators leave out what the table does not find. */
    private static final String[] ASKING = {"org.jctools.maps.NonBlocking", "org.cliffc.high_scale_lib.NonBlocking"};
    /** Objects among which another table is looked for that a table is a view of. */
    private static final int NEAR = 64;

    private final String pool;
    private final ChangedHashes changed;
    private final List<Object> all = new ArrayList<>();
    /** Tables that have been looked at: made anew, or right as they are. */
    private final IdentityHashMap<Object, Object> done = new IdentityHashMap<>();

    private LibraryTables(String pool, ChangedHashes changed) {
        this.pool = pool;
        this.changed = changed;
    }

    static boolean isOne(Class<?> c) {
        Class<?> around = c.getEnclosingClass();
        boolean view = around != null && (!Modifier.isStatic(c.getModifiers()) || Map.class.isAssignableFrom(around) || Collection.class.isAssignableFrom(around));
        if (c.getClassLoader() == null || view) {
            return false;
        }
        for (int i = 0; i < JDK.length; i++) {
            if (JDK[i].isAssignableFrom(c)) {
                return false;
            }
        }
        return Map.class.isAssignableFrom(c) || Set.class.isAssignableFrom(c) || Collection.class.isAssignableFrom(c) && isMultiset(c);
    }

    private static boolean isMultiset(Class<?> c) {
        for (Class<?> k = c; k != null; k = k.getSuperclass()) {
            for (Class<?> i : k.getInterfaces()) {
                if (i.getName().equals("com.google.common.collect.Multiset")) {
                    return true;
                }
            }
        }
        return false;
    }

    /** @param pool what messages begin with */
    static void look(String pool, List<Object> suspects, ChangedHashes changed) {
        if (!changed.any()) {
            return;
        }
        LibraryTables tables = new LibraryTables(pool, changed);
        for (int i = 0; i < suspects.size(); i++) {
            if (isOne(suspects.get(i).getClass())) {
                tables.all.add(suspects.get(i));
            }
        }
        while (tables.pass()) {
            // A table within another one, or behind it, has been made anew.
        }
    }

    /** Makes those anew that do not find a key, but for those that may be views of others, or have others for keys. */
    private boolean pass() {
        IdentityHashMap<Object, Object> lost = new IdentityHashMap<>();
        for (int i = 0; i < all.size(); i++) {
            Object key = done.containsKey(all.get(i)) ? null : doubtful(all.get(i));
            if (key != null) {
                lost.put(all.get(i), key);
            }
        }
        boolean any = false;
        for (int i = 0; i < all.size(); i++) {
            Object table = all.get(i);
            if (lost.containsKey(table) && !isBehind(table, lost)) {
                makeAnew(table, lost.get(table));
                any = true;
            }
        }
        for (boolean own = true; !any && !lost.isEmpty(); own = false) {
            // Each is behind another: those first that have entries themselves.
            for (int i = 0; i < all.size() && !any; i++) {
                if (lost.containsKey(all.get(i)) && hasOwnArray(all.get(i)) == own) {
                    makeAnew(all.get(i), lost.get(all.get(i)));
                    any = true;
                }
            }
        }
        return any;
    }

    /** Whether another one of {@code lost} is near, from its fields on. */
    private static boolean isBehind(Object table, IdentityHashMap<Object, Object> lost) {
        IdentityHashMap<Object, Object> met = new IdentityHashMap<>();
        List<Object> open = new ArrayList<>(List.of(table));
        for (int i = 0; i < open.size() && i < NEAR; i++) {
            Object o = open.get(i);
            if (o != table && lost.containsKey(o)) {
                return true;
            }
            if (met.put(o, o) == null) {
                ChangedHashes.referredTo(o, open);
            }
        }
        return false;
    }

    /** @return a key with a changed class within that a table has and does not find, or may not find what is equal to it; or null */
    private Object doubtful(Object table) {
        return key(table, hasOwnArray(table));
    }

    /** @param any also one that the table finds */
    private Object key(Object table, boolean any) {
        try {
            for (Object key : table instanceof Map ? ((Map<?, ?>) table).keySet() : (Collection<?>) table) {
                if (changed.within(key) && (any || !has(table, key))) {
                    return key;
                }
            }
        } catch (RuntimeException | StackOverflowError | LinkageError e) {
            // It does not answer: it is no table, or was as broken before.
        }
        return null;
    }

    private static boolean has(Object table, Object key) {
        return table instanceof Map ? ((Map<?, ?>) table).containsKey(key) : ((Collection<?>) table).contains(key);
    }

    /**
     * Whether a table has its entries in an array of its own. If it remembers their hash codes it may find a key itself, and not one that is equal to it. Others have
     * them in a table of the JDK's, which is right by now.
     */
    private static boolean hasOwnArray(Object table) {
        List<Object> fields = new ArrayList<>();
        ChangedHashes.referredTo(table, fields);
        boolean array = false;
        for (int i = 0; i < fields.size(); i++) {
            array |= fields.get(i) instanceof Object[];
            for (int k = 0; k < JDK.length; k++) {
                if (JDK[k].isInstance(fields.get(i))) {
                    return false;
                }
            }
        }
        return array;
    }

    private void makeAnew(Object table, Object key) {
        done.put(table, table);
        String name = table.getClass().getName();
        boolean begun = false;
        String why;
        try {
            if (name.startsWith(ASKING[0]) || name.startsWith(ASKING[1])) {
                throw refusal(pool, table, key, "its iterator leaves out what it does not find");
            }
            Entries before = Entries.of(table);
            if (before.keys.size() != before.size) {
                throw refusal(pool, table, key, "it gives " + before.keys.size() + " of " + before.size + " entries");
            }
            before.clear();
            begun = true;
            before.putAll();
            if (before.equals(Entries.of(table))) {
                return;
            }
            why = "two of its keys are equal now, or it does not take its entries as it gives them";
        } catch (PoolException e) {
            throw e;
        } catch (RuntimeException | StackOverflowError | LinkageError e) {
            why = "it cannot be made anew (" + e + ")";
        }
        if (begun || key(table, false) != null) {
            throw refusal(pool, table, key, why);
        }
        // It finds its keys, and cannot change: it is right as it is.
    }

    /** What a table gives as its entries; values: null for a set. */
    private static final class Entries {
        private final Object table;
        private final int size;
        private final List<Object> keys = new ArrayList<>();
        private final List<Object> values;

        private Entries(Object table, int size, List<Object> values) {
            this.table = table;
            this.size = size;
            this.values = values;
        }

        static Entries of(Object table) {
            if (!(table instanceof Map<?, ?> m)) {
                Collection<?> c = (Collection<?>) table;
                Entries all = new Entries(table, c.size(), null);
                all.keys.addAll(c);
                return all;
            }
            Entries all = new Entries(table, m.size(), new ArrayList<>());
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

        /** Whether both have the same objects for keys and values, as often, in whichever order. */
        boolean equals(Entries other) {
            if (other.size != size || other.keys.size() != size) {
                return false;
            }
            IdentityHashMap<Object, List<Object>> left = new IdentityHashMap<>();
            for (int i = 0; i < size; i++) {
                left.computeIfAbsent(keys.get(i), k -> new ArrayList<>()).add(values == null ? null : values.get(i));
            }
            for (int i = 0; i < size; i++) {
                List<Object> of = left.get(other.keys.get(i));
                Object value = other.values == null ? null : other.values.get(i);
                int at = 0;
                while (of != null && at < of.size() && of.get(at) != value) {
                    at++;
                }
                if (of == null || at == of.size()) {
                    return false;
                }
                of.remove(at);
            }
            return true;
        }
    }

    static PoolException refusal(String pool, Object table, Object key, String why) {
        return new PoolException(Reason.CHANGED_CLASS, pool + "a " + table.getClass().getName() + " has keys of class " + key.getClass().getName()
            + ", whose hash codes have changed with a class, and " + why + "; open the pool with the class as it was and move the entries to another table, or let "
            + "equals() and hashCode() use the same fields as before");
    }
}
