package io.towa.graph;

import io.towa.PoolException;
import io.towa.medium.Nvm;
import io.towa.pool.Layout;
import io.towa.pool.UndoLog;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.BitSet;
import java.util.Hashtable;
import java.util.HashMap;
import java.util.HashSet;
import java.util.IdentityHashMap;
import java.util.LinkedList;
import java.util.List;
import java.util.TreeMap;
import java.util.concurrent.ArrayBlockingQueue;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ConcurrentSkipListMap;
import java.util.concurrent.LinkedBlockingDeque;
import java.util.concurrent.LinkedBlockingQueue;
import jdk.internal.misc.Unsafe;

/**
 * Heals what a crash left in the midst of a JDK collection's own work.
 *
 * <p>Durable stores are in program order, so a crash leaves what a thread that is stopped for ever between two stores of an operation leaves. What that means for
 * the collections of the JDK:
 *
 * <pre>
 *   whole or not at all, by themselves    CopyOnWriteArrayList and -Set, ConcurrentLinkedQueue and -Deque, ConcurrentSkipListMap and -Set, the
 *                                         atomics, ArrayList.add and set at the end of a list (size is stored last)
 *   whole or not at all, healed here      ConcurrentHashMap (resize, first table, reservations, tree bins), LinkedBlockingDeque, ArrayBlockingQueue,
 *                                         LinkedBlockingQueue.put; an addition or a removal at an end of ArrayDeque; LinkedList, but for clear
 *   sizes, after a crash                  {@link CountRepairs}
 *   need Towa.atomically                  HashMap, LinkedHashMap, HashSet, Hashtable, IdentityHashMap: a resize publishes the new table before it has moved the
 *                                         entries, or empties the old one before it publishes: entries not yet moved are lost (the agent
 *                                         makes sections of these methods). Without a resize a put is whole.
 *                                         TreeMap, TreeSet (rotations: sections, too), PriorityQueue and PriorityBlockingQueue (sifting),
 *                                         ArrayList, Vector, LinkedList (insertion and removal within), BitSet (more than one word),
 *                                         LinkedBlockingQueue.take (the old head points to itself before the head moves: all but the last element are lost)
 * </pre>
 *
 * Locks, spin flags and waiting threads are no part of replicas ({@link io.towa.policy.Fields}), so nothing comes back locked.
 *
 * <p>Works on the objects in DRAM, before anybody sees them, and notes what it changes: {@link #mirror} brings that to the replicas, in one
 * section: a crash in its midst leaves all to be healed again.
 */
final class Repairs {
    private static final Unsafe U = Unsafe.getUnsafe();

    /** A changed field or element. */
    private record Change(Object o, long offset, int bytes) {}

    private final List<Change> changes = new ArrayList<>();
    private final List<Object> suspects;
    private final ChangedHashes changed;

    Repairs(List<Object> suspects, ChangedHashes changed) {
        this.suspects = suspects;
        this.changed = changed;
    }

    /** Whether instances are to be looked at. */
    static boolean suspect(Class<?> c) {
        return ConcurrentHashMap.class.isAssignableFrom(c) || MapRepairs.isTransient(c) || LinkedBlockingQueue.class.isAssignableFrom(c)
            || LinkedBlockingDeque.class.isAssignableFrom(c) || ArrayBlockingQueue.class.isAssignableFrom(c) || HashMap.class.isAssignableFrom(c)
            || Hashtable.class.isAssignableFrom(c) || IdentityHashMap.class.isAssignableFrom(c)
            || MapRepairs.isImmutable(c) || EnumRepairs.isSuspect(c) || ZoneRepairs.isSuspect(c);
    }

    /** Whether instances are to be looked at where sizes may not be those of the entries, and not else. */
    static boolean counted(Class<?> c) {
        return TreeMap.class.isAssignableFrom(c) || ConcurrentSkipListMap.class.isAssignableFrom(c) || LinkedList.class.isAssignableFrom(c)
            || ArrayDeque.class.isAssignableFrom(c) || BitSet.class.isAssignableFrom(c);
    }

    /**
     * @param rehash some constant has another identity hash than when it was saved: hash tables may need to be made anew
     * @param recount sizes may not be those of the entries
     * @param most the pool has no more objects than these
     * @param gone constants that their enums do not have any more
     */
    void run(boolean rehash, boolean recount, long most, List<RecoveryWorker.Gone> gone) {
        MapRepairs maps = new MapRepairs(this, suspects, most);
        EnumRepairs enums = new EnumRepairs(this, gone);
        ZoneRepairs zones = new ZoneRepairs(this);
        CountRepairs counts = recount ? new CountRepairs(this, most) : null;
        for (int i = 0; i < suspects.size(); i++) {
            Object o = suspects.get(i);
            if (counts != null) {
                // Before tables are made anew, which takes the entries by size or by their links.
                counts.look(o);
            }
            if (o instanceof LinkedBlockingQueue) {
                linkedQueue(o);
            } else if (o instanceof LinkedBlockingDeque) {
                linkedDeque(o);
            } else if (o instanceof ArrayBlockingQueue) {
                arrayQueue(o);
            } else if (EnumRepairs.isSuspect(o.getClass())) {
                enums.look(o);
            } else if (ZoneRepairs.isSuspect(o.getClass())) {
                zones.look(o);
            } else {
                // A key may have been taken out of an IdentityHashMap and the gap not closed: those behind it would not be found.
                maps.look(o, rehash || recount && o.getClass() == IdentityHashMap.class);
            }
        }
        enums.requireRest();
        zones.calendars();
    }

    ChangedHashes changed() {
        return changed;
    }

    /** Whether {@link #requireDistinct} is worth asking. */
    boolean mayMerge() {
        return changed.any();
    }

    /** Refuses a table of which two keys have become equal since their class has changed: one of the entries would not be found. */
    void requireDistinct(Object table, List<Object> keys) {
        if (!mayMerge()) {
            return;
        }
        HashSet<Object> seen = new HashSet<>();
        for (int i = 0; i < keys.size(); i++) {
            boolean first;
            try {
                first = seen.add(keys.get(i));
            } catch (RuntimeException | StackOverflowError e) {
                // It has no hash code as it is.
                continue;
            }
            // Others were equal before: the program has changed them since it put them in.
            if (!first && changed.within(keys.get(i))) {
                throw LibraryTables.refusal("", table, keys.get(i), "two of its keys are equal now");
            }
        }
    }

    boolean any() {
        return !changes.isEmpty();
    }

    /**
     * Brings the changes to the replicas, and to those of constants their hashes of this run: tables are made for these. Nobody else stores to any of them. All or nothing:
     * if this thread is in a section, it is none of that one's stores when it is done. If it fails nothing has changed in the pool.
     */
    void mirror(List<RecoveryWorker.Rehashed> rehashed) {
        if (changes.isEmpty() && rehashed.isEmpty()) {
            return;
        }
        boolean own = !UndoLog.isMine();
        if (own) {
            Sections.beginLog();
        }
        long before = UndoLog.entries();
        boolean done = false;
        try {
            for (int i = 0; i < changes.size(); i++) {
                Change c = changes.get(i);
                Stores.offset(c.o, c.offset, c.bytes);
            }
            mirrorHashes(rehashed);
            done = true;
        } finally {
            int gate = Gate.enter();
            try {
                if (!done) {
                    UndoLog.undo(before);
                }
                if (own) {
                    UndoLog.end();
                } else {
                    UndoLog.keep(before);
                }
            } finally {
                Gate.exit(gate);
            }
        }
    }

    private static void mirrorHashes(List<RecoveryWorker.Rehashed> rehashed) {
        for (boolean tried = false;; tried = true) {
            PoolException full;
            int gate = Gate.enter();
            try {
                for (int i = 0; i < rehashed.size(); i++) {
                    long at = rehashed.get(i).position() + Layout.HASH;
                    UndoLog.before(at, 4);
                    Nvm.putInt(at, System.identityHashCode(rehashed.get(i).object()));
                    Nvm.writeBack(at, 4);
                }
                Nvm.fence();
                return;
            } catch (PoolException e) {
                full = e;
            } finally {
                Gate.exit(gate);
            }
            Collector.makeRoom(full, tried);
        }
    }

    // ---- stores that are noted

    /** A class of the JDK. Many are private; their names are part of its serial and debugging lore, not of any promise. */
    static Class<?> type(String name) {
        try {
            return Class.forName(name, false, null);
        } catch (ClassNotFoundException e) {
            throw new NoClassDefFoundError(e.getMessage());
        }
    }

    static long offset(Class<?> c, String field) {
        return U.objectFieldOffset(c, field);
    }

    void put(Object o, long offset, Object v) {
        if (U.getReference(o, offset) != v) {
            U.putReference(o, offset, v);
            changes.add(new Change(o, offset, U.arrayIndexScale(Object[].class)));
        }
    }

    void putInt(Object o, long offset, int v) {
        if (U.getInt(o, offset) != v) {
            U.putInt(o, offset, v);
            changes.add(new Change(o, offset, 4));
        }
    }

    void putByte(Object o, long offset, byte v) {
        if (U.getByte(o, offset) != v) {
            U.putByte(o, offset, v);
            changes.add(new Change(o, offset, 1));
        }
    }

    void putLong(Object o, long offset, long v) {
        if (U.getLong(o, offset) != v) {
            U.putLong(o, offset, v);
            changes.add(new Change(o, offset, 8));
        }
    }

    // ---- queues

    /** One lock for each end: the count may be behind, the last node too. */
    private void linkedQueue(Object q) {
        long head = offset(LinkedBlockingQueue.class, "head");
        long last = offset(LinkedBlockingQueue.class, "last");
        Class<?> node = U.getReference(q, head).getClass();
        long next = offset(node, "next");
        long item = offset(node, "item");
        Object h = U.getReference(q, head);
        if (U.getReference(h, next) == h) {
            // Stopped between the two stores of take: what is left is what the other end knows.
            Object l = U.getReference(q, last);
            put(h, next, l != h && U.getReference(l, item) != null ? l : null);
        }
        int count = 0;
        Object p = h;
        for (Object n = U.getReference(p, next); n != null; n = U.getReference(n, next)) {
            if (U.getReference(n, item) == null) {
                // Taken, or removed: on its way out.
                put(p, next, U.getReference(n, next));
                continue;
            }
            count++;
            p = n;
        }
        put(q, last, p);
        Object counter = U.getReference(q, offset(LinkedBlockingQueue.class, "count"));
        putInt(counter, offset(java.util.concurrent.atomic.AtomicInteger.class, "value"), count);
    }

    /** Linked both ways: the way that has more of the items is the right one. */
    private void linkedDeque(Object q) {
        Class<?> node = type("java.util.concurrent.LinkedBlockingDeque$Node");
        long first = offset(LinkedBlockingDeque.class, "first");
        long last = offset(LinkedBlockingDeque.class, "last");
        long next = offset(node, "next");
        long prev = offset(node, "prev");
        long item = offset(node, "item");
        List<Object> forth = chain(U.getReference(q, first), next, item);
        List<Object> back = chain(U.getReference(q, last), prev, item);
        List<Object> all = forth;
        if (back.size() > forth.size()) {
            all = new ArrayList<>();
            for (int i = back.size() - 1; i >= 0; i--) {
                all.add(back.get(i));
            }
        }
        int n = all.size();
        for (int i = 0; i < n; i++) {
            put(all.get(i), prev, i == 0 ? null : all.get(i - 1));
            put(all.get(i), next, i == n - 1 ? null : all.get(i + 1));
        }
        put(q, first, n == 0 ? null : all.get(0));
        put(q, last, n == 0 ? null : all.get(n - 1));
        putInt(q, offset(LinkedBlockingDeque.class, "count"), n);
    }

    private static List<Object> chain(Object from, long link, long item) {
        List<Object> all = new ArrayList<>();
        Object n = from;
        while (n != null) {
            if (U.getReference(n, item) != null) {
                all.add(n);
            }
            Object to = U.getReference(n, link);
            n = to == n ? null : to;
        }
        return all;
    }

    /** The elements lie side by side from the first one on; the numbers may be one behind. */
    private void arrayQueue(Object q) {
        Object[] items = (Object[]) U.getReference(q, offset(ArrayBlockingQueue.class, "items"));
        long take = offset(ArrayBlockingQueue.class, "takeIndex");
        long count = offset(ArrayBlockingQueue.class, "count");
        int from = U.getInt(q, take);
        if (items[from] == null && U.getInt(q, count) > 0) {
            from = from + 1 == items.length ? 0 : from + 1;
        }
        int n = 0;
        while (n < items.length && items[(int) ((from + (long) n) % items.length)] != null) {
            n++;
        }
        putInt(q, take, from);
        putInt(q, count, n);
        putInt(q, offset(ArrayBlockingQueue.class, "putIndex"), (int) ((from + (long) n) % items.length));
    }
}
