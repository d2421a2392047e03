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
    private static final Class<?> NODE = Repairs.type(IN + "Node");
    private static final Class<?> FORWARDING = Repairs.type(IN + "ForwardingNode");
    private static final Class<?> RESERVATION = Repairs.type(IN + "ReservationNode");
    static final Class<?> TREE_BIN = Repairs.type(IN + "TreeBin");
    private static final Class<?> TREE_NODE = Repairs.type(IN + "TreeNode");
    private static final int MOVED = -1;
    private static final int TREE = -2;

    private static final Class<?> MAP = ConcurrentHashMap.class;
    static final long TABLE = Repairs.offset(MAP, "table");
    private static final long NEXT_TABLE = Repairs.offset(MAP, "nextTable");
    private static final long CONTROL = Repairs.offset(MAP, "sizeCtl");
    private static final long TRANSFER = Repairs.offset(MAP, "transferIndex");
    static final long BASE = Repairs.offset(MAP, "baseCount");
    static final long CELLS = Repairs.offset(MAP, "counterCells");
    private static final long HASH = Repairs.offset(NODE, "hash");
    private static final long KEY = Repairs.offset(NODE, "key");
    private static final long VALUE = Repairs.offset(NODE, "val");
    static final long NEXT = Repairs.offset(NODE, "next");
    private static final long FORWARD = Repairs.offset(FORWARDING, "nextTable");
    private static final long ROOT = Repairs.offset(TREE_BIN, "root");
    static final long FIRST = Repairs.offset(TREE_BIN, "first");
    private static final long PARENT = Repairs.offset(TREE_NODE, "parent");
    private static final long LEFT = Repairs.offset(TREE_NODE, "left");
    private static final long RIGHT = Repairs.offset(TREE_NODE, "right");
    private static final long PREV = Repairs.offset(TREE_NODE, "prev");

    private final Repairs repairs;
    /** No chain has more nodes, but for a circle. */
    private final long most;
    /** Some table has a bin that must go; which, only the tables say. */
    private boolean badBins;

    /** @param most how many objects the pool may have */
    MapRepairs(Repairs repairs, List<Object> suspects, long most) {
        this.repairs = repairs;
        this.most = most;
        for (int i = 0; i < suspects.size(); i++) {
            Class<?> c = suspects.get(i).getClass();
            badBins |= c == RESERVATION || c == TREE_BIN && !sound(suspects.get(i));
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
        boolean sound = U.getInt(m, CONTROL) >= 0 && next == null && !(badBins && hasBadBin(table));
        if (sound && !(rehash && (repairs.mayMerge() || misplaced(table)))) {
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
        if (rehash && repairs.mayMerge()) {
            List<Object> keys = new ArrayList<>();
            for (int i = 0; i < entries.size(); i++) {
                keys.add(U.getReference(entries.get(i), KEY));
            }
            repairs.requireDistinct(m, keys);
        }
        if (!sound || misplaced(table)) {
            rebuild(m, length, entries, rehash);
        }
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
        for (int i = 0; i < entries.size(); i++) {
            Object from = entries.get(i);
            Object key = U.getReference(from, KEY);
            int hash = rehash ? concurrentHash(key, U.getInt(from, HASH)) : U.getInt(from, HASH);
            Object n = allocate(NODE);
            U.putInt(n, HASH, hash);
            U.putReference(n, KEY, key);
            U.putReference(n, VALUE, U.getReference(from, VALUE));
            U.putReference(n, NEXT, table[hash & length - 1]);
            table[hash & length - 1] = n;
        }
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
        } catch (RuntimeException | StackOverflowError e) {
            return saved;
        }
    }

    // ---- rehashing of the others: the table gets new nodes with the hashes of today, as in a ConcurrentHashMap

    private static final Class<?> HASH_NODE = Repairs.type("java.util.HashMap$Node");
    private static final Class<?> LINKED_NODE = Repairs.type("java.util.LinkedHashMap$Entry");
    static final long MAP_TABLE = Repairs.offset(HashMap.class, "table");
    static final long LINKED_HEAD = Repairs.offset(LinkedHashMap.class, "head");
    static final long LINKED_TAIL = Repairs.offset(LinkedHashMap.class, "tail");
    static final long AFTER = Repairs.offset(LINKED_NODE, "after");
    static final long BEFORE = Repairs.offset(LINKED_NODE, "before");

    /** A chained table's nodes: their class, and where its fields are. */
    private record Nodes(Class<?> type, long hash, long key, long value, long next) {
        Nodes(Class<?> type, Class<?> declaring) {
            this(type, Repairs.offset(declaring, "hash"), Repairs.offset(declaring, "key"), Repairs.offset(declaring, "value"), Repairs.offset(declaring, "next"));
        }

        /** Whether threads that changed a table without a lock have linked a bin to a circle: it has more than {@code most} nodes. */
        boolean hasCircle(Object[] bins, long most) {
            return CountRepairs.entries(bins, next, most) > most;
        }

        /** Whether a table has a node whose hash is not that of its key. */
        boolean misplaced(Object[] bins, boolean spread) {
            for (int i = 0; i < bins.length; i++) {
                for (Object e = bins[i]; e != null; e = U.getReference(e, next)) {
                    int saved = U.getInt(e, hash);
                    Object k = U.getReference(e, key);
                    if (saved != (spread ? hashOf(k, saved) : plainHash(k, saved))) {
                        return true;
                    }
                }
            }
            return false;
        }

        List<Object> of(Object[] bins) {
            List<Object> all = new ArrayList<>();
            for (int i = 0; i < bins.length; i++) {
                for (Object n = bins[i]; n != null; n = U.getReference(n, next)) {
                    all.add(n);
                }
            }
            return all;
        }

        List<Object> keysOf(List<Object> nodes) {
            List<Object> keys = new ArrayList<>();
            for (int i = 0; i < nodes.size(); i++) {
                keys.add(U.getReference(nodes.get(i), key));
            }
            return keys;
        }

        /** A node with the key and the value of another one, in front of the bin {@code at}. */
        Object add(Object from, int h, Object[] table, int at) {
            Object n = allocate(type);
            U.putInt(n, hash, h);
            U.putReference(n, key, U.getReference(from, key));
            U.putReference(n, value, U.getReference(from, value));
            U.putReference(n, next, table[at]);
            table[at] = n;
            return n;
        }
    }

    private static final Nodes HASH_NODES = new Nodes(HASH_NODE, HASH_NODE);
    private static final Nodes LINKED_NODES = new Nodes(LINKED_NODE, HASH_NODE);

    private void hashMap(HashMap<?, ?> m) {
        Object[] bins = (Object[]) U.getReference(m, MAP_TABLE);
        boolean linked = m instanceof LinkedHashMap;
        Nodes nodes = linked ? LINKED_NODES : HASH_NODES;
        if (bins == null || !toBeRelinked(m, bins, nodes, true)) {
            return;
        }
        List<Object> all = nodes.of(bins);
        if (linked) {
            List<Object> inOrder = new ArrayList<>();
            for (Object e = U.getReference(m, LINKED_HEAD); e != null && inOrder.size() <= all.size(); e = U.getReference(e, AFTER)) {
                inOrder.add(e);
            }
            // Else threads that changed it without a lock have lost the order.
            all = inOrder.size() == all.size() ? inOrder : all;
        }
        Object[] table = (Object[]) java.lang.reflect.Array.newInstance(HASH_NODE, bins.length);
        Object last = null;
        for (int i = 0; i < all.size(); i++) {
            Object from = all.get(i);
            int h = hashOf(U.getReference(from, nodes.key), U.getInt(from, nodes.hash));
            Object n = nodes.add(from, h, table, h & table.length - 1);
            if (linked) {
                U.putReference(n, BEFORE, last);
                if (last == null) {
                    repairs.put(m, LINKED_HEAD, n);
                } else {
                    U.putReference(last, AFTER, n);
                }
            }
            last = n;
        }
        repairs.put(m, MAP_TABLE, table);
        if (linked) {
            repairs.put(m, LINKED_TAIL, last);
        }
    }

    private boolean toBeRelinked(Object table, Object[] bins, Nodes nodes, boolean spread) {
        if (nodes.hasCircle(bins, most)) {
            return false;
        }
        if (repairs.mayMerge()) {
            repairs.requireDistinct(table, nodes.keysOf(nodes.of(bins)));
        }
        return nodes.misplaced(bins, spread);
    }

    private static int hashOf(Object k, int saved) {
        try {
            int h = k == null ? 0 : k.hashCode();
            return h ^ h >>> 16;
        } catch (RuntimeException | StackOverflowError e) {
            return saved;
        }
    }

    private static final Class<?> HASHTABLE_ENTRY = Repairs.type("java.util.Hashtable$Entry");
    private static final Nodes HASHTABLE_NODES = new Nodes(HASHTABLE_ENTRY, HASHTABLE_ENTRY);
    static final long HASHTABLE_TABLE = Repairs.offset(Hashtable.class, "table");

    /** By its own table, whatever a subclass says: Properties keeps its entries elsewhere, and has none. */
    private void hashtable(Hashtable<?, ?> m) {
        Object[] bins = (Object[]) U.getReference(m, HASHTABLE_TABLE);
        if (bins == null || !toBeRelinked(m, bins, HASHTABLE_NODES, false)) {
            return;
        }
        List<Object> all = HASHTABLE_NODES.of(bins);
        Object[] table = (Object[]) java.lang.reflect.Array.newInstance(HASHTABLE_ENTRY, bins.length);
        for (int i = 0; i < all.size(); i++) {
            Object from = all.get(i);
            int h = plainHash(U.getReference(from, HASHTABLE_NODES.key), U.getInt(from, HASHTABLE_NODES.hash));
            HASHTABLE_NODES.add(from, h, table, (h & 0x7fffffff) % table.length);
        }
        repairs.put(m, HASHTABLE_TABLE, table);
    }

    private static int plainHash(Object k, int saved) {
        try {
            return k.hashCode();
        } catch (RuntimeException | StackOverflowError e) {
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
        repairs.requireDistinct(o, keys);
        if (wrong) {
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
        long table = Repairs.offset(IdentityHashMap.class, "table");
        long size = Repairs.offset(IdentityHashMap.class, "size");
        repairs.put(m, table, U.getReference(anew, table));
        repairs.putInt(m, size, U.getInt(anew, size));
    }
}
