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
 * <p>A table is a {@link Map} or a {@link Set}, but no view of another one; a multiset of Guava's is refused. Other classes do not tell what they are.
 */
final class LibraryTables {
    private static final Class<?>[] JDK = {HashMap.class, Hashtable.class, ConcurrentHashMap.class, IdentityHashMap.class, TreeMap.class,
        ConcurrentSkipListMap.class, HashSet.class, TreeSet.class, ConcurrentSkipListSet.class};
    private static final String BIMAP = "com.google.common.collect.BiMap";
    private static final String MULTISET = "com.google.common.collect.Multiset";
    /** Iterators of the first leave out what the table does not find; the other has its entries in an order that is not its own. */
    private static final String ASKING = "org.jctools.maps.NonBlocking";
    private static final String[] UNMADE = {ASKING, "com.google.common.collect.LinkedHashMultimap$ValueSet"};
    /** Objects among which another table is looked for that a table is a view of. */
    private static final int NEAR = 64;

    private final String pool;
    private final ChangedHashes changed;
    /** Tables that may not find a key. */
    private final List<Object> all = new ArrayList<>();
    /** Of {@link #all}: those that are not looked at yet. */
    private final IdentityHashMap<Object, Object> left = new IdentityHashMap<>();
    /** Those that have been made anew, or are right as they are. */
    private final IdentityHashMap<Object, Object> done = new IdentityHashMap<>();

    private LibraryTables(String pool, ChangedHashes changed) {
        this.pool = pool;
        this.changed = changed;
    }

    static boolean isOne(Class<?> c) {
        if (c.getClassLoader() == null) {
            return false;
        }
        for (int i = 0; i < JDK.length; i++) {
            if (JDK[i].isAssignableFrom(c)) {
                return false;
            }
        }
        return Map.class.isAssignableFrom(c) || Set.class.isAssignableFrom(c) || Collection.class.isAssignableFrom(c) && isA(c, MULTISET);
    }

    private static boolean isA(Class<?> c, String name) {
        return interfaceOf(c, name) != null;
    }

    /** The interface of that name that a class has; null: none. */
    private static Class<?> interfaceOf(Class<?> c, String name) {
        for (Class<?> k = c; k != null; k = k.getSuperclass()) {
            for (Class<?> i : k.getInterfaces()) {
                Class<?> found = i.getName().equals(name) ? i : interfaceOf(i, name);
                if (found != null) {
                    return found;
                }
            }
        }
        return null;
    }

    /** A class within that of a table, or that has another object around each of its own, and no entries: what it is a view of has them. */
    private static boolean isView(Object table) {
        Class<?> c = table.getClass();
        Class<?> around = c.getEnclosingClass();
        if (around == null || Modifier.isStatic(c.getModifiers()) && !Map.class.isAssignableFrom(around) && !Collection.class.isAssignableFrom(around)) {
            return false;
        }
        List<Object> fields = new ArrayList<>();
        ChangedHashes.referredTo(table, fields, NEAR);
        boolean of = false;
        for (int i = 0; i < fields.size(); i++) {
            if (fields.get(i) instanceof Object[]) {
                return false;
            }
            of |= fields.get(i) instanceof Map || fields.get(i) instanceof Collection;
        }
        return of;
    }

    /** @param pool what messages begin with */
    static void look(String pool, List<Object> suspects, ChangedHashes changed) {
        if (!changed.any()) {
            return;
        }
        LibraryTables tables = new LibraryTables(pool, changed);
        for (int i = 0; i < suspects.size(); i++) {
            Object table = suspects.get(i);
            if (isOne(table.getClass()) && !isView(table) && tables.doubtful(table) != null) {
                tables.left.put(table, table);
                tables.all.add(table);
            }
        }
        // Of those that lead to each other the one comes last that is begun with: not the one that has the entries.
        for (boolean own : new boolean[] {false, true}) {
            for (int i = 0; i < tables.all.size(); i++) {
                if (hasOwnArray(tables.all.get(i)) == own) {
                    tables.makeAnew(tables.all.get(i));
                }
            }
        }
    }

    /** Makes a table anew, and before it those that it may be a view of, or have for keys. */
    private void makeAnew(Object last) {
        List<Object> open = new ArrayList<>();
        open.add(last);
        while (!open.isEmpty()) {
            Object table = open.getLast();
            if (left.remove(table) != null) {
                addNear(table, open);
                continue;
            }
            open.removeLast();
            // It may be right by now.
            Object key = done.put(table, table) == null ? doubtful(table) : null;
            if (key != null) {
                makeAnew(table, key);
            }
        }
    }

    /** Adds those that are left and near, from the fields of {@code table} on. */
    private void addNear(Object table, List<Object> into) {
        IdentityHashMap<Object, Object> met = new IdentityHashMap<>();
        List<Object> open = new ArrayList<>(List.of(table));
        for (int i = 0; i < open.size() && i < NEAR; i++) {
            Object o = open.get(i);
            if (met.put(o, o) == null) {
                if (left.containsKey(o)) {
                    into.add(o);
                }
                ChangedHashes.referredTo(o, open, NEAR);
            }
        }
    }

    /** @return a key with a changed class within that a table has and does not find, or may not find what is equal to it; or null */
    private Object doubtful(Object table) {
        return key(table, hasOwnArray(table));
    }

    /** @param any also one that the table finds */
    private Object key(Object table, boolean any) {
        try {
            Map<?, ?> map = table instanceof Map<?, ?> m ? m : null;
            int n = 0;
            for (Object key : map != null ? map.keySet() : elements(table)) {
                n++;
                if (changed.within(key) && (any || !(map != null ? map.containsKey(key) : ((Collection<?>) table).contains(key)))) {
                    return key;
                }
            }
            for (Object value : map != null && isA(table.getClass(), BIMAP) ? map.values() : List.of()) {
                if (changed.within(value) && (any || !map.containsValue(value))) {
                    return value;
                }
            }
            // It may be that all that is left out has such a key.
            return map != null && n < map.size() && isUnmade(table) ? table : null;
        } catch (RuntimeException | StackOverflowError | LinkageError e) {
            // It does not answer: it is no table, or was as broken before.
            return null;
        }
    }

    private static Iterable<?> elements(Object table) {
        try {
            return table instanceof Set<?> s ? s : (Iterable<?>) interfaceOf(table.getClass(), MULTISET).getMethod("elementSet").invoke(table);
        } catch (ReflectiveOperationException e) {
            return (Collection<?>) table;
        }
    }

    /** Whether nothing of such a table can be made anew. */
    private static boolean isUnmade(Object table) {
        String name = table.getClass().getName();
        for (int i = 0; i < UNMADE.length; i++) {
            if (name.startsWith(UNMADE[i])) {
                return true;
            }
        }
        return false;
    }

    /**
     * Whether a table has its entries in an array of its own. If it remembers their hash codes it may find a key itself, and not one that is equal to it. Others have
     * them in a table of the JDK's, which is right by now.
     */
    private static boolean hasOwnArray(Object table) {
        List<Object> fields = new ArrayList<>();
        ChangedHashes.referredTo(table, fields, NEAR);
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
        boolean refills = (table instanceof Map || table instanceof Set) && !isUnmade(table);
        if (!refills && (table.getClass().getName().startsWith(ASKING) || key(table, false) != null)) {
            throw refusal(pool, table, key, "it cannot be made anew");
        }
        if (!refills) {
            return;
        }
        Entries before = null;
        String why;
        try {
            before = Entries.of(table);
            if (before.keys.size() != before.size) {
                throw refusal(pool, table, key, "it gives " + before.keys.size() + " of " + before.size + " entries");
            }
            before.clear();
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
        if (before == null || key(table, false) != null || !isUnchanged(before, table)) {
            throw refusal(pool, table, key, why);
        }
        // It finds its keys, and cannot change: it is right as it is.
    }

    private static boolean isUnchanged(Entries before, Object table) {
        try {
            return before.equals(Entries.of(table));
        } catch (RuntimeException | StackOverflowError | LinkageError e) {
            return false;
        }
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

        /** A table of primitive values gives another box each time. */
        private static boolean isSame(Object a, Object b) {
            return a == b || a != null && b != null && a.getClass() == b.getClass() && (a instanceof Number || a instanceof Character || a instanceof Boolean)
                && a.getClass().getClassLoader() == null && a.equals(b);
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
                while (of != null && at < of.size() && !isSame(of.get(at), value)) {
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
