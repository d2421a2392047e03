package io.towa.graph;

import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.BitSet;
import java.util.EnumMap;
import java.util.HashMap;
import java.util.Hashtable;
import java.util.IdentityHashMap;
import java.util.LinkedHashMap;
import java.util.LinkedList;
import java.util.List;
import java.util.TreeMap;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ConcurrentSkipListMap;
import java.util.concurrent.atomic.LongAdder;
import jdk.internal.misc.Unsafe;

/**
 * Makes the sizes that collections of the JDK store agree with their entries.
 *
 * <p>Most collections store an entry and their size one after the other. A crash between the two stores leaves the size one off. It would stay so, and
 * the next such crash would add to it: {@code isEmpty} of an empty map would be false for good. So the entries are counted. That looks at each of them;
 * it happens only where the last run, or one that did not bring everything back, did not end with a close (the word {@link io.towa.pool.Layout#COUNTS}).
 *
 * <p>The entries are right: one store makes an entry reachable. A collection that links its entries twice may have an entry in one of both ways only: then the
 * second way is made anew from the first.
 *
 * <p>Threads that changed a collection without its lock may have linked it to a circle. Such a collection is left as it is: no look is longer than the pool
 * has blocks.
 */
final class CountRepairs {
    private static final Unsafe U = Unsafe.getUnsafe();

    private static final long CELL_VALUE = Repairs.offset(Repairs.type("java.util.concurrent.ConcurrentHashMap$CounterCell"), "value");

    private static final long MAP_SIZE = Repairs.offset(HashMap.class, "size");
    private static final long MAP_NEXT = Repairs.offset(Repairs.type("java.util.HashMap$Node"), "next");
    private static final long LINKED_MODE = Repairs.offset(LinkedHashMap.class, "putMode");

    private static final long HASHTABLE_COUNT = Repairs.offset(Hashtable.class, "count");
    private static final long HASHTABLE_NEXT = Repairs.offset(Repairs.type("java.util.Hashtable$Entry"), "next");

    private static final long IDENTITY_TABLE = Repairs.offset(IdentityHashMap.class, "table");
    private static final long IDENTITY_SIZE = Repairs.offset(IdentityHashMap.class, "size");

    private static final Class<?> TREE = Repairs.type("java.util.TreeMap$Entry");
    private static final long TREE_ROOT = Repairs.offset(TreeMap.class, "root");
    private static final long TREE_SIZE = Repairs.offset(TreeMap.class, "size");
    private static final long TREE_LEFT = Repairs.offset(TREE, "left");
    private static final long TREE_RIGHT = Repairs.offset(TREE, "right");
    /** A red-black tree of 2^31 entries is less deep, even in the midst of an insertion. */
    private static final int DEEPEST = 128;

    private static final Class<?> SKIP = Repairs.type("java.util.concurrent.ConcurrentSkipListMap$Node");
    private static final long SKIP_HEAD = Repairs.offset(ConcurrentSkipListMap.class, "head");
    private static final long SKIP_ADDER = Repairs.offset(ConcurrentSkipListMap.class, "adder");
    private static final long SKIP_FIRST = Repairs.offset(Repairs.type("java.util.concurrent.ConcurrentSkipListMap$Index"), "node");
    private static final long SKIP_NEXT = Repairs.offset(SKIP, "next");
    private static final long SKIP_KEY = Repairs.offset(SKIP, "key");
    private static final long SKIP_VALUE = Repairs.offset(SKIP, "val");
    private static final long ADDER_CELLS = Repairs.offset(LongAdder.class.getSuperclass(), "cells");
    private static final long ADDER_BASE = Repairs.offset(LongAdder.class.getSuperclass(), "base");

    private static final Class<?> LIST = Repairs.type("java.util.LinkedList$Node");
    private static final long LIST_FIRST = Repairs.offset(LinkedList.class, "first");
    private static final long LIST_LAST = Repairs.offset(LinkedList.class, "last");
    private static final long LIST_SIZE = Repairs.offset(LinkedList.class, "size");
    private static final long LIST_ITEM = Repairs.offset(LIST, "item");
    private static final long LIST_NEXT = Repairs.offset(LIST, "next");
    private static final long LIST_PREV = Repairs.offset(LIST, "prev");

    private static final long BITS_WORDS = Repairs.offset(BitSet.class, "words");
    private static final long BITS_USED = Repairs.offset(BitSet.class, "wordsInUse");
    private static final long ENUM_VALUES = Repairs.offset(EnumMap.class, "vals");
    private static final long ENUM_SIZE = Repairs.offset(EnumMap.class, "size");
    private static final Class<?> JUMBO = Repairs.type("java.util.JumboEnumSet");
    private static final long JUMBO_ELEMENTS = Repairs.offset(JUMBO, "elements");
    private static final long JUMBO_SIZE = Repairs.offset(JUMBO, "size");

    private final Repairs repairs;
    /** No chain of entries is longer, but for a circle. */
    private final long most;

    /** @param most how many objects the pool may have */
    CountRepairs(Repairs repairs, long most) {
        this.repairs = repairs;
        this.most = most;
    }

    void look(Object o) {
        if (o instanceof ConcurrentHashMap) {
            concurrentMap(o);
        } else if (o instanceof HashMap) {
            hashMap(o);
        } else if (o instanceof TreeMap) {
            treeMap(o);
        } else if (o instanceof Hashtable) {
            hashtable(o);
        } else if (o instanceof IdentityHashMap) {
            identityMap(o);
        } else if (o instanceof ConcurrentSkipListMap) {
            skipList(o);
        } else if (o instanceof LinkedList) {
            linkedList(o);
        } else if (o instanceof ArrayDeque) {
            new DequeRepairs(repairs).look(o);
        } else if (o instanceof BitSet) {
            bits(o);
        } else if (o instanceof EnumMap) {
            enumMap(o);
        } else if (o.getClass() == JUMBO) {
            enumSet(o);
        }
    }

    // ---- tables

    private long entries(Object[] table, long next) {
        return entries(table, next, most);
    }

    /** @return how many entries the bins of a table have; more than {@code most}: they are linked to a circle */
    static long entries(Object[] table, long next, long most) {
        long n = 0;
        for (int i = 0; table != null && i < table.length; i++) {
            Object bin = table[i];
            Object e = bin != null && bin.getClass() == MapRepairs.TREE_BIN ? U.getReference(bin, MapRepairs.FIRST) : bin;
            for (; e != null && n <= most; e = U.getReference(e, next)) {
                n++;
            }
        }
        return n;
    }

    /** A table in the midst of a resize is made anew later, and counted then ({@link MapRepairs}). */
    private void concurrentMap(Object m) {
        long n = entries((Object[]) U.getReference(m, MapRepairs.TABLE), MapRepairs.NEXT);
        long said = U.getLong(m, MapRepairs.BASE);
        Object[] cells = (Object[]) U.getReference(m, MapRepairs.CELLS);
        for (int i = 0; cells != null && i < cells.length; i++) {
            said += cells[i] == null ? 0 : U.getLong(cells[i], CELL_VALUE);
        }
        if (said != n && n <= most) {
            // The sum of both is the size. The cells come back when threads contend.
            repairs.put(m, MapRepairs.CELLS, null);
            repairs.putLong(m, MapRepairs.BASE, n);
        }
    }

    private void hashMap(Object m) {
        Object[] table = (Object[]) U.getReference(m, MapRepairs.MAP_TABLE);
        long n = entries(table, MAP_NEXT);
        if (n > most) {
            return;
        }
        if (m instanceof LinkedHashMap) {
            if (!isLinked(m, n)) {
                link(m, table);
            }
            // putFirst sets it for a while.
            repairs.putInt(m, LINKED_MODE, 0);
        }
        repairs.putInt(m, MAP_SIZE, (int) n);
    }

    /** Whether as many entries as the table has are linked both ways. */
    private static boolean isLinked(Object m, long n) {
        Object before = null;
        long linked = 0;
        for (Object e = U.getReference(m, MapRepairs.LINKED_HEAD); e != null && linked <= n; e = U.getReference(e, MapRepairs.AFTER)) {
            if (U.getReference(e, MapRepairs.BEFORE) != before) {
                return false;
            }
            before = e;
            linked++;
        }
        return linked == n && U.getReference(m, MapRepairs.LINKED_TAIL) == before;
    }

    /** Links the entries of the table anew: as from the head on, as far as that leads, then as back from the tail, then those on neither way. */
    private void link(Object m, Object[] table) {
        IdentityHashMap<Object, Object> in = new IdentityHashMap<>();
        for (int i = 0; table != null && i < table.length; i++) {
            for (Object e = table[i]; e != null; e = U.getReference(e, MAP_NEXT)) {
                in.put(e, e);
            }
        }
        List<Object> all = chain(U.getReference(m, MapRepairs.LINKED_HEAD), MapRepairs.AFTER, most);
        all.addAll(chain(U.getReference(m, MapRepairs.LINKED_TAIL), MapRepairs.BEFORE, most).reversed());
        all.addAll(in.keySet());
        Object before = null;
        for (int i = 0; i < all.size(); i++) {
            Object e = all.get(i);
            if (in.remove(e) != null) {
                repairs.put(e, MapRepairs.BEFORE, before);
                repairs.put(before == null ? m : before, before == null ? MapRepairs.LINKED_HEAD : MapRepairs.AFTER, e);
                before = e;
            }
        }
        repairs.put(before == null ? m : before, before == null ? MapRepairs.LINKED_HEAD : MapRepairs.AFTER, null);
        repairs.put(m, MapRepairs.LINKED_TAIL, before);
    }

    /** Properties have no table here: their entries are in a ConcurrentHashMap. */
    private void hashtable(Object m) {
        Object[] table = (Object[]) U.getReference(m, MapRepairs.HASHTABLE_TABLE);
        long n = entries(table, HASHTABLE_NEXT);
        if (table != null && n <= most) {
            repairs.putInt(m, HASHTABLE_COUNT, (int) n);
        }
    }

    private void identityMap(Object m) {
        Object[] table = (Object[]) U.getReference(m, IDENTITY_TABLE);
        int n = 0;
        for (int i = 0; i < table.length; i += 2) {
            n += table[i] == null ? 0 : 1;
        }
        repairs.putInt(m, IDENTITY_SIZE, n);
    }

    // ---- trees and lists

    private void treeMap(Object m) {
        long n = 0;
        ArrayList<Object> left = new ArrayList<>();
        Object e = U.getReference(m, TREE_ROOT);
        while (e != null || !left.isEmpty()) {
            if (e == null) {
                e = left.removeLast();
            }
            if (++n > most || left.size() > DEEPEST) {
                return;
            }
            Object other = U.getReference(e, TREE_RIGHT);
            if (other != null) {
                left.add(other);
            }
            e = U.getReference(e, TREE_LEFT);
        }
        repairs.putInt(m, TREE_SIZE, (int) n);
    }

    /** Nodes without a key are heads and marks, those without a value are removed. */
    private void skipList(Object m) {
        Object head = U.getReference(m, SKIP_HEAD);
        long n = 0;
        for (Object e = head == null ? null : U.getReference(head, SKIP_FIRST); e != null; e = U.getReference(e, SKIP_NEXT)) {
            n += U.getReference(e, SKIP_KEY) != null && U.getReference(e, SKIP_VALUE) != null ? 1 : 0;
        }
        LongAdder adder = (LongAdder) U.getReference(m, SKIP_ADDER);
        if ((adder == null ? 0 : adder.sum()) == n) {
            return;
        }
        if (adder == null) {
            adder = new LongAdder();
            adder.add(n);
            repairs.put(m, SKIP_ADDER, adder);
        } else {
            repairs.put(adder, ADDER_CELLS, null);
            repairs.putLong(adder, ADDER_BASE, n);
        }
    }

    /**
     * Linked both ways. The way from the first node on is right if it leads to the last one: behind that are nodes that were being added. Else a node
     * was being added at the end, some within, or the list was being cleared: the way back is right, but for a node that is cleared.
     */
    private void linkedList(Object m) {
        Object first = U.getReference(m, LIST_FIRST);
        Object last = U.getReference(m, LIST_LAST);
        List<Object> all = chain(first, LIST_NEXT, most);
        if (all.size() > most) {
            return;
        }
        if (last == null || leadsTo(last, all)) {
            int end = all.size() - 1;
            if (end > 0 && isCleared(all.get(end), LIST_PREV)) {
                all.remove(end);
            }
        } else {
            all = chain(last, LIST_PREV, most);
            if (all.size() > most) {
                return;
            }
            all = all.reversed();
            // A list of one null that is getting another element has more nodes than it says.
            if (isCleared(all.getFirst(), LIST_NEXT) && all.size() <= U.getInt(m, LIST_SIZE)) {
                all.removeFirst();
            }
        }
        int n = all.size();
        for (int i = 0; i < n; i++) {
            repairs.put(all.get(i), LIST_PREV, i == 0 ? null : all.get(i - 1));
            repairs.put(all.get(i), LIST_NEXT, i == n - 1 ? null : all.get(i + 1));
        }
        repairs.put(m, LIST_FIRST, n == 0 ? null : all.get(0));
        repairs.put(m, LIST_LAST, n == 0 ? null : all.get(n - 1));
        repairs.putInt(m, LIST_SIZE, n);
    }

    private static boolean leadsTo(Object node, List<Object> all) {
        // Most often it is the last one.
        for (int i = all.size() - 1; i >= 0; i--) {
            if (all.get(i) == node) {
                return true;
            }
        }
        return false;
    }

    /** Whether a node, which others are linked to, has lost its element and its own link to them. */
    private static boolean isCleared(Object node, long link) {
        return U.getReference(node, LIST_ITEM) == null && U.getReference(node, link) == null;
    }

    /** @return the nodes that one way of links has, at most {@code most + 1} */
    private static List<Object> chain(Object from, long link, long most) {
        List<Object> all = new ArrayList<>();
        for (Object n = from; n != null && all.size() <= most; n = U.getReference(n, link)) {
            all.add(n);
        }
        return all;
    }

    // ---- arrays

    /** The last word in use is not 0, and those behind it are: what a removal left there would come back with the next bit. */
    private void bits(Object o) {
        long[] words = (long[]) U.getReference(o, BITS_WORDS);
        int n = Math.min(U.getInt(o, BITS_USED), words.length);
        for (int i = n; i < words.length; i++) {
            repairs.putLong(words, U.arrayBaseOffset(long[].class) + 8L * i, 0);
        }
        while (n > 0 && words[n - 1] == 0) {
            n--;
        }
        repairs.putInt(o, BITS_USED, n);
    }

    private void enumMap(Object o) {
        Object[] values = (Object[]) U.getReference(o, ENUM_VALUES);
        int n = 0;
        for (int i = 0; i < values.length; i++) {
            n += values[i] == null ? 0 : 1;
        }
        repairs.putInt(o, ENUM_SIZE, n);
    }

    private void enumSet(Object o) {
        long[] words = (long[]) U.getReference(o, JUMBO_ELEMENTS);
        int n = 0;
        for (int i = 0; i < words.length; i++) {
            n += Long.bitCount(words[i]);
        }
        repairs.putInt(o, JUMBO_SIZE, n);
    }
}
