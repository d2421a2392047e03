package io.towa.graph;

import java.util.ArrayList;
import java.util.HashMap;
import java.util.Hashtable;
import java.util.IdentityHashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import jdk.internal.misc.Unsafe;

/**
 * Heals hash tables.
 *
 * <p>{@link ConcurrentHashMap}: a resize leaves every entry reachable, from the old table or through its forwarding nodes; nothing goes on with it, for
 * the state says that somebody is at it. So the table is made anew from the entries, with the hashes that they have: no code of the program runs. Likewise
 * if a bin is reserved for a value that was being computed (it is empty then), or a tree bin's tree is not that of its list (the list counts).
 *
 * <p>Rehashing: a key's hash may stem from the identity of a constant (an enum constant, a class), which has one of its own in this run if the program asked for it
 * before the pool was opened. Then every key is asked for its hash, and a table whose entries lie wrong is made anew.
 */
final class MapRepairs {
    private static final Unsafe U = Unsafe.getUnsafe();
    private static final String IN = "java.util.concurrent.ConcurrentHashMap$";
    private static final Class<?> NODE = type("Node");
    private static final Class<?> FORWARDING = type("ForwardingNode");
    private static final Class<?> RESERVATION = type("ReservationNode");
    private static final Class<?> TREE_BIN = type("TreeBin");
    private static final Class<?> TREE_NODE = type("TreeNode");
    private static final int MOVED = -1;
    private static final int TREE = -2;

    private static final Class<?> MAP = ConcurrentHashMap.class;
    private static final long TABLE = Repairs.offset(MAP, "table");
    private static final long NEXT_TABLE = Repairs.offset(MAP, "nextTable");
    private static final long CONTROL = Repairs.offset(MAP, "sizeCtl");
    private static final long TRANSFER = Repairs.offset(MAP, "transferIndex");
    private static final long BASE = Repairs.offset(MAP, "baseCount");
    private static final long CELLS = Repairs.offset(MAP, "counterCells");
    private static final long HASH = Repairs.offset(NODE, "hash");
    private static final long KEY = Repairs.offset(NODE, "key");
    private static final long VALUE = Repairs.offset(NODE, "val");
    private static final long NEXT = Repairs.offset(NODE, "next");
    private static final long FORWARD = Repairs.offset(FORWARDING, "nextTable");
    private static final long ROOT = Repairs.offset(TREE_BIN, "root");
    private static final long FIRST = Repairs.offset(TREE_BIN, "first");
    private static final long PARENT = Repairs.offset(TREE_NODE, "parent");
    private static final long LEFT = Repairs.offset(TREE_NODE, "left");
    private static final long RIGHT = Repairs.offset(TREE_NODE, "right");
    private static final long PREV = Repairs.offset(TREE_NODE, "prev");

    private final Repairs repairs;
    /** Some table has a bin that must go; which, only the tables say. */
    private boolean badBins;

    MapRepairs(Repairs repairs, List<Object> suspects) {
        this.repairs = repairs;
        for (int i = 0; i < suspects.size(); i++) {
            Class<?> c = suspects.get(i).getClass();
            badBins |= c == RESERVATION || c == TREE_BIN && !sound(suspects.get(i));
        }
    }

    private static Class<?> type(String name) {
        try {
            return Class.forName(IN + name, false, null);
        } catch (ClassNotFoundException e) {
            throw new NoClassDefFoundError(e.getMessage());
        }
    }

    /** Whether {@code o} is the table of a ConcurrentHashMap, and this thread has reserved its bin at that offset for a value that it computes. */
    static boolean isReserved(Object o, long offset) {
        if (o.getClass().getComponentType() != NODE) {
            return false;
        }
        Object bin = U.getReference(o, offset);
        return bin != null && bin.getClass() == RESERVATION && Thread.holdsLock(bin);
    }

    /** Reserved bins, and tree bins, which may be in the midst of a rotation. */
    static boolean isTransient(Class<?> c) {
        return c == RESERVATION || c == TREE_BIN;
    }

    void look(Object o, boolean rehash) {
        if (o instanceof ConcurrentHashMap) {
            concurrent(o, rehash);
        } else if (rehash && o instanceof HashMap) {
            hashMap((HashMap<?, ?>) o);
        } else if (rehash && o instanceof Hashtable) {
            hashtable((Hashtable<?, ?>) o);
        } else if (rehash && o.getClass() == IdentityHashMap.class) {
            identity((IdentityHashMap<?, ?>) o);
        } else if (rehash && isImmutable(o.getClass())) {
            immutable(o);
        }
    }

    // ---- ConcurrentHashMap

    private void concurrent(Object m, boolean rehash) {
        Object[] table = (Object[]) U.getReference(m, TABLE);
        Object[] next = (Object[]) U.getReference(m, NEXT_TABLE);
        if (table == null) {
            if (U.getInt(m, CONTROL) < 0) {
                repairs.putInt(m, CONTROL, 0);
            }
            return;
        }
        if (U.getInt(m, CONTROL) >= 0 && next == null && !(badBins && hasBadBin(table)) && !(rehash && misplaced(table))) {
            return;
        }
        List<Object> entries = new ArrayList<>();
        int length = table.length;
        for (int i = 0; i < table.length; i++) {
            Object bin = table[i];
            if (bin != null && U.getInt(bin, HASH) == MOVED && bin.getClass() == FORWARDING) {
                Object[] to = (Object[]) U.getReference(bin, FORWARD);
                length = to.length;
                gather(to[i], entries);
                gather(to[i + table.length], entries);
            } else {
                gather(bin, entries);
            }
        }
        rebuild(m, length, entries, rehash);
    }

    private static void gather(Object bin, List<Object> entries) {
        if (bin == null || bin.getClass() == RESERVATION) {
            return;
        }
        for (Object n = bin.getClass() == TREE_BIN ? U.getReference(bin, FIRST) : bin; n != null; n = U.getReference(n, NEXT)) {
            entries.add(n);
        }
    }

    /** Bins of the new table are lists: a later insertion makes trees of those that are long. */
    private void rebuild(Object m, int length, List<Object> entries, boolean rehash) {
        Object[] table = (Object[]) java.lang.reflect.Array.newInstance(NODE, length);
        List<Object> keys = new ArrayList<>();
        for (int i = 0; i < entries.size(); i++) {
            Object from = entries.get(i);
            Object key = U.getReference(from, KEY);
            keys.add(key);
            int hash = rehash ? concurrentHash(key, U.getInt(from, HASH)) : U.getInt(from, HASH);
            Object n = allocate(NODE);
            U.putInt(n, HASH, hash);
            U.putReference(n, KEY, key);
            U.putReference(n, VALUE, U.getReference(from, VALUE));
            U.putReference(n, NEXT, table[hash & length - 1]);
            table[hash & length - 1] = n;
        }
        repairs.requireDistinct(m, keys);
        repairs.put(m, NEXT_TABLE, null);
        repairs.put(m, TABLE, table);
        repairs.putInt(m, CONTROL, length - (length >>> 2));
        repairs.putInt(m, TRANSFER, 0);
        repairs.put(m, CELLS, null);
        repairs.putLong(m, BASE, entries.size());
    }

    private static Object allocate(Class<?> c) {
        try {
            return U.allocateInstance(c);
        } catch (InstantiationException e) {
            throw new AssertionError(e);
        }
    }

    private static boolean hasBadBin(Object[] table) {
        for (int i = 0; i < table.length; i++) {
            Object bin = table[i];
            if (bin != null && (bin.getClass() == RESERVATION || bin.getClass() == TREE_BIN && !sound(bin))) {
                return true;
            }
        }
        return false;
    }

    /** Whether the tree of a bin has just the nodes of its list, rightly linked. */
    private static boolean sound(Object bin) {
        IdentityHashMap<Object, Object> list = new IdentityHashMap<>();
        Object before = null;
        for (Object n = U.getReference(bin, FIRST); n != null; n = U.getReference(n, NEXT)) {
            if (n.getClass() != TREE_NODE || U.getReference(n, PREV) != before || list.put(n, n) != null) {
                return false;
            }
            before = n;
        }
        Object root = U.getReference(bin, ROOT);
        if (root == null || U.getReference(root, PARENT) != null) {
            return false;
        }
        ArrayList<Object> left = new ArrayList<>();
        left.add(root);
        int met = 0;
        while (!left.isEmpty()) {
            Object n = left.remove(left.size() - 1);
            if (!list.containsKey(n) || ++met > list.size()) {
                return false;
            }
            for (long side : new long[] {LEFT, RIGHT}) {
                Object child = U.getReference(n, side);
                if (child != null) {
                    int order = Integer.compare(U.getInt(child, HASH), U.getInt(n, HASH));
                    if (U.getReference(child, PARENT) != n || (side == LEFT ? order > 0 : order < 0)) {
                        return false;
                    }
                    left.add(child);
                }
            }
        }
        return met == list.size();
    }

    private static boolean misplaced(Object[] table) {
        List<Object> entries = new ArrayList<>();
        for (int i = 0; i < table.length; i++) {
            entries.clear();
            gather(table[i], entries);
            for (int k = 0; k < entries.size(); k++) {
                int hash = U.getInt(entries.get(k), HASH);
                if (hash != concurrentHash(U.getReference(entries.get(k), KEY), hash)) {
                    return true;
                }
            }
        }
        return false;
    }

    private static int concurrentHash(Object key, int saved) {
        try {
            int h = key.hashCode();
            return (h ^ h >>> 16) & 0x7fffffff;
        } catch (RuntimeException e) {
            return saved;
        }
    }

    // ---- rehashing of the others: a new map of the same kind gets the entries, and gives its table

    private static final Class<?> HASH_NODE = nodeOf(new HashMap<>());

    private static Class<?> nodeOf(Map<Object, Object> m) {
        m.put("", "");
        return m.entrySet().iterator().next().getClass();
    }

    private void hashMap(HashMap<?, ?> m) {
        long table = Repairs.offset(HashMap.class, "table");
        Object[] bins = (Object[]) U.getReference(m, table);
        if (bins == null || !hashMapMisplaced(bins)) {
            return;
        }
        boolean linked = m instanceof LinkedHashMap;
        HashMap<Object, Object> anew = linked ? new LinkedHashMap<>(2 * bins.length) : new HashMap<>(bins.length);
        long next = Repairs.offset(HASH_NODE, "next");
        long key = Repairs.offset(HASH_NODE, "key");
        long value = Repairs.offset(HASH_NODE, "value");
        List<Object> keys = new ArrayList<>();
        if (linked) {
            long after = Repairs.offset(nodeOf(new LinkedHashMap<>()), "after");
            for (Object n = U.getReference(m, Repairs.offset(LinkedHashMap.class, "head")); n != null; n = U.getReference(n, after)) {
                keys.add(U.getReference(n, key));
                anew.put(U.getReference(n, key), U.getReference(n, value));
            }
        } else {
            for (int i = 0; i < bins.length; i++) {
                for (Object n = bins[i]; n != null; n = U.getReference(n, next)) {
                    keys.add(U.getReference(n, key));
                    anew.put(U.getReference(n, key), U.getReference(n, value));
                }
            }
        }
        repairs.requireDistinct(m, keys);
        if (anew.size() != keys.size()) {
            // Keys that the program has changed since it put them in. They are as they were.
            return;
        }
        steal(m, anew, HashMap.class, table, "size", "threshold");
        if (linked) {
            repairs.put(m, Repairs.offset(LinkedHashMap.class, "head"), U.getReference(anew, Repairs.offset(LinkedHashMap.class, "head")));
            repairs.put(m, Repairs.offset(LinkedHashMap.class, "tail"), U.getReference(anew, Repairs.offset(LinkedHashMap.class, "tail")));
        }
    }

    private void steal(Object m, Object anew, Class<?> c, long table, String... counts) {
        repairs.put(m, table, U.getReference(anew, table));
        for (int i = 0; i < counts.length; i++) {
            long at = Repairs.offset(c, counts[i]);
            repairs.putInt(m, at, U.getInt(anew, at));
        }
    }

    private static boolean hashMapMisplaced(Object[] bins) {
        long next = Repairs.offset(HASH_NODE, "next");
        long key = Repairs.offset(HASH_NODE, "key");
        long hash = Repairs.offset(HASH_NODE, "hash");
        for (int i = 0; i < bins.length; i++) {
            for (Object n = bins[i]; n != null; n = U.getReference(n, next)) {
                Object k = U.getReference(n, key);
                int h = hashOf(k, U.getInt(n, hash));
                if (U.getInt(n, hash) != h) {
                    return true;
                }
            }
        }
        return false;
    }

    private static int hashOf(Object k, int saved) {
        try {
            int h = k == null ? 0 : k.hashCode();
            return h ^ h >>> 16;
        } catch (RuntimeException e) {
            return saved;
        }
    }

    /** By its own table, whatever a subclass says: Properties keeps its entries elsewhere, and has none. */
    private void hashtable(Hashtable<?, ?> m) {
        long table = Repairs.offset(Hashtable.class, "table");
        Object[] bins = (Object[]) U.getReference(m, table);
        if (bins == null) {
            return;
        }
        Class<?> entry = bins.getClass().getComponentType();
        long next = Repairs.offset(entry, "next");
        long key = Repairs.offset(entry, "key");
        long value = Repairs.offset(entry, "value");
        long hash = Repairs.offset(entry, "hash");
        Hashtable<Object, Object> anew = new Hashtable<>(Math.max(11, bins.length));
        List<Object> keys = new ArrayList<>();
        boolean wrong = false;
        for (int i = 0; i < bins.length; i++) {
            for (Object n = bins[i]; n != null; n = U.getReference(n, next)) {
                wrong |= plainHash(U.getReference(n, key), U.getInt(n, hash)) != U.getInt(n, hash);
                keys.add(U.getReference(n, key));
                anew.put(U.getReference(n, key), U.getReference(n, value));
            }
        }
        if (wrong) {
            repairs.requireDistinct(m, keys);
        }
        if (wrong && anew.size() == keys.size()) {
            steal(m, anew, Hashtable.class, table, "count", "threshold");
        }
    }

    private static int plainHash(Object k, int saved) {
        try {
            return k.hashCode();
        } catch (RuntimeException e) {
            return saved;
        }
    }

    // ---- Set.of and Map.of: open addressing by the keys' hashes, in one array that never changes

    private static final Class<?> SET = Set.of(1, 2, 3).getClass();
    private static final Class<?> MAP_OF = Map.of(1, 1, 2, 2).getClass();

    static boolean isImmutable(Class<?> c) {
        return c == SET || c == MAP_OF;
    }

    private void immutable(Object o) {
        long field = o.getClass() == SET ? Repairs.offset(SET, "elements") : Repairs.offset(MAP_OF, "table");
        int step = o.getClass() == SET ? 1 : 2;
        Object[] table = (Object[]) U.getReference(o, field);
        Object[] anew = new Object[table.length];
        List<Object> keys = new ArrayList<>();
        boolean wrong = false;
        for (int i = 0; i < table.length; i += step) {
            if (table[i] == null) {
                continue;
            }
            keys.add(table[i]);
            int at = step * Math.floorMod(plainHash(table[i], 0), table.length / step);
            while (anew[at] != null) {
                at = (at + step) % table.length;
            }
            System.arraycopy(table, i, anew, at, step);
        }
        for (int i = 0; i < table.length; i += step) {
            wrong |= table[i] != null && !found(table, table[i], step);
        }
        if (wrong) {
            repairs.requireDistinct(o, keys);
            repairs.put(o, field, anew);
        }
    }

    private static boolean found(Object[] table, Object k, int step) {
        for (int at = step * Math.floorMod(plainHash(k, 0), table.length / step); table[at] != null; at = (at + step) % table.length) {
            if (table[at] == k) {
                return true;
            }
        }
        return false;
    }

    private void identity(IdentityHashMap<?, ?> m) {
        for (Object k : m.keySet()) {
            if (!m.containsKey(k)) {
                identityAnew(m);
                return;
            }
        }
    }

    private void identityAnew(IdentityHashMap<?, ?> m) {
        IdentityHashMap<Object, Object> anew = new IdentityHashMap<>(Math.max(8, m.size()));
        for (Map.Entry<?, ?> e : m.entrySet()) {
            anew.put(e.getKey(), e.getValue());
        }
        steal(m, anew, IdentityHashMap.class, Repairs.offset(IdentityHashMap.class, "table"), "size");
    }
}
