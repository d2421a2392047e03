package io.towa.graph;

import io.towa.barrier.Header;
import io.towa.pool.Allocator;
import java.util.Arrays;
import jdk.internal.misc.Unsafe;

/**
 * Which object has which replica: a table from objects, by identity, to words.
 *
 * <pre>
 *   word   63..44 slot of the batch (while grey)   43..4 replica's position / 16   bit 0 grey        0: no replica, white
 * </pre>
 *
 * 64 shards by identity hash; a shard is an open-addressed pair of arrays. Readers take no lock: an entry's word is stored before its key,
 * and a grown table is published whole. What must always hold: who marks an object (its identity hash is in the header
 * by then) inserts it before it fences every thread, so that a writer either finds the entry or has made its store visible to the copy.
 *
 * <p>Keys are strong: an object that has left the durable graph stays until the collector's next cycle. When that has found out which replicas
 * are reached, and until their entries are gone, an entry without a mark is no entry ({@link #onlyMarked}).
 */
public final class Replicas {
    static final long GREY = 1;
    static final int SLOT_SHIFT = 44;
    private static final long POSITION = (1L << SLOT_SHIFT) - 16;

    static final int SHARDS = 64;
    private static final Object REMOVED = new Object();
    private static final Unsafe U = Unsafe.getUnsafe();
    private static final long REFS = Unsafe.ARRAY_OBJECT_BASE_OFFSET;
    private static final long REF_SHIFT = Integer.numberOfTrailingZeros(Unsafe.ARRAY_OBJECT_INDEX_SCALE);
    private static final long WORDS = Unsafe.ARRAY_LONG_BASE_OFFSET;

    /** One shard's arrays. */
    private static final class Table {
        final Object[] keys;
        final long[] words;
        /** Entries and removed ones. */
        int filled;
        int live;

        Table(int capacity) {
            this(capacity, new long[capacity]);
        }

        Table(int capacity, long[] words) {
            keys = new Object[capacity];
            this.words = words;
        }
    }

    private static volatile Table[] shards = fresh(64);
    /** While the collector drops entries: says which of them count; another object in each cycle. */
    private static volatile Judge onlyMarked;

    private static final class Judge {
        private final Allocator allocator;

        Judge(Allocator allocator) {
            this.allocator = allocator;
        }

        boolean alive(long word) {
            return word == 0 || allocator.marked(position(word));
        }
    }

    private Replicas() {}

    private static Table[] fresh(int capacity) {
        Table[] t = new Table[SHARDS];
        for (int i = 0; i < SHARDS; i++) {
            t[i] = new Table(capacity);
        }
        return t;
    }

    /** Forgets all, and makes room for {@code objects}. */
    static void reset(long objects) {
        long each = Math.max(64, objects * 2 / SHARDS);
        onlyMarked = null;
        shards = fresh((int) Math.min(1 << 28, Long.highestOneBit(each - 1) << 1));
    }

    /** The identity hash, spread: the upper bits say which shard, the lower where in it. */
    static int spread(int hash) {
        int h = hash * 0x9E3779B1;
        return h ^ h >>> 15;
    }

    static int shard(int spread) {
        return spread >>> 26;
    }

    /**
     * The table of one shard, made by one thread and seen by nobody before {@link #install}: recovery's way in.
     *
     * <p>First it is found out where each entry goes, which takes ints alone, then keys are written from the first to the last, many at once: a single reference that
     * is stored into what is old takes the JVM's collector a fence (G1's barrier), which is most of what an insertion costs.
     */
    static final class Loading {
        private static final int MANY = 1 << 10;
        private final Table table;

        Loading(Found.Shard shard) {
            int entries = shard.count;
            // Two thirds full at most, as an insertion leaves it.
            int capacity = (int) Math.max(64, Math.min(1 << 30, Long.highestOneBit(entries + (long) entries / 2 + 1) << 1));
            // Each word is set below.
            table = new Table(capacity, (long[]) U.allocateUninitializedArray(long.class, capacity));
            int[] entryAt = places(shard);
            Object[] part = new Object[Math.min(MANY, capacity)];
            for (int from = 0; from < capacity; from += part.length) {
                for (int i = 0; i < part.length; i++) {
                    int e = entryAt[from + i] - 1;
                    part[i] = e < 0 ? null : shard.objects[e];
                    table.words[from + i] = e < 0 ? 0 : shard.positions[e];
                }
                System.arraycopy(part, 0, table.keys, from, part.length);
            }
        }

        /** For each place of the table, the entry that comes there and 1, or 0. What is in has come first. */
        private int[] places(Found.Shard shard) {
            int capacity = table.keys.length;
            if (capacity > shard.entryAt.length) {
                shard.entryAt = new int[capacity];
            } else {
                Arrays.fill(shard.entryAt, 0, capacity, 0);
            }
            int[] entryAt = shard.entryAt;
            int mask = capacity - 1;
            for (int e = 0; e < shard.count; e++) {
                int i = shard.spreads[e] & mask;
                while (entryAt[i] != 0 && shard.objects[entryAt[i] - 1] != shard.objects[e]) {
                    i = i + 1 & mask;
                }
                if (entryAt[i] == 0) {
                    entryAt[i] = e + 1;
                    table.filled++;
                    table.live++;
                }
            }
            return entryAt;
        }
    }

    /** Forgets all and shows these tables, one a shard, instead. */
    static void install(Loading[] loaded) {
        Table[] t = new Table[SHARDS];
        for (int i = 0; i < SHARDS; i++) {
            t[i] = loaded[i].table;
        }
        shards = t;
    }

    private static Object key(Table t, int i) {
        return U.getReferenceAcquire(t.keys, REFS + ((long) i << REF_SHIFT));
    }

    /** The object's word; 0 if it has no replica. */
    static long find(Object o) {
        // What is new has no identity hash; asking for it would make one, and look for it where nothing is in the cache.
        if (!Header.marked(o)) {
            return 0;
        }
        int h = spread(System.identityHashCode(o));
        Table t = (Table) U.getReferenceAcquire(shards, REFS + ((long) (h >>> 26) << REF_SHIFT));
        int mask = t.keys.length - 1;
        for (int i = h & mask;; i = i + 1 & mask) {
            Object k = key(t, i);
            if (k == o) {
                for (;;) {
                    long word = U.getLongAcquire(t.words, WORDS + 8L * i);
                    Judge judge = onlyMarked;
                    if (judge == null || judge.alive(word)) {
                        return word;
                    }
                    U.loadFence();
                    // Outside the gate the marks may have gone meanwhile, since the cycle ended: then they say nothing.
                    if (onlyMarked == judge) {
                        return 0;
                    }
                }
            }
            if (k == null) {
                return 0;
            }
        }
    }

    /** Entries whose replica has no mark count as absent from now on; null: all count. The gate is shut. */
    static void onlyMarked(Allocator judge) {
        onlyMarked = judge == null ? null : new Judge(judge);
    }

    public static boolean durable(Object o) {
        return find(o) != 0;
    }

    /** Whether {@code o} is null, or durable and not about to become so. */
    static boolean blue(Object o) {
        if (o == null) {
            return true;
        }
        long word = find(o);
        return word != 0 && (word & GREY) == 0;
    }

    static long position(long word) {
        return word & POSITION;
    }

    static int slot(long word) {
        return (int) (word >>> SLOT_SHIFT);
    }

    static long grey(long position, int slot) {
        return position | (long) slot << SLOT_SHIFT | GREY;
    }

    /**
     * Enters {@code o} with {@code word}, if it has none.
     *
     * @return 0 if entered, else the word that it has
     */
    static long insert(Object o, long word) {
        int h = spread(System.identityHashCode(o));
        Table[] all = shards;
        int shard = h >>> 26;
        synchronized (lock(all, shard)) {
            Table t = all[shard];
            if (3L * (t.filled + 1) > 2L * t.keys.length) {
                t = grow(t);
                U.putReferenceRelease(all, REFS + ((long) shard << REF_SHIFT), t);
            }
            int mask = t.keys.length - 1;
            int i = h & mask;
            for (Object k = t.keys[i]; k != null; k = t.keys[i]) {
                if (k == o) {
                    Judge judge = onlyMarked;
                    if (judge == null || judge.alive(t.words[i])) {
                        return t.words[i];
                    }
                    // The collector has not come by yet: its replica is as good as freed.
                    U.putLongRelease(t.words, WORDS + 8L * i, word);
                    return 0;
                }
                i = i + 1 & mask;
            }
            t.words[i] = word;
            U.putReferenceRelease(t.keys, REFS + ((long) i << REF_SHIFT), o);
            t.filled++;
            t.live++;
            return 0;
        }
    }

    private static final Object[] LOCKS = new Object[SHARDS];

    static {
        for (int i = 0; i < SHARDS; i++) {
            LOCKS[i] = new Object();
        }
    }

    private static Object lock(Table[] all, int shard) {
        return LOCKS[shard];
    }

    private static Table grow(Table old) {
        int capacity = old.keys.length;
        while (3 * (old.live + 1) > capacity) {
            capacity *= 2;
        }
        Table t = new Table(capacity);
        for (int i = 0; i < old.keys.length; i++) {
            Object k = old.keys[i];
            if (k != null && k != REMOVED) {
                put(t, k, old.words[i]);
            }
        }
        return t;
    }

    private static void put(Table t, Object k, long word) {
        int mask = t.keys.length - 1;
        int i = spread(System.identityHashCode(k)) & mask;
        while (t.keys[i] != null) {
            i = i + 1 & mask;
        }
        t.words[i] = word;
        t.keys[i] = k;
        t.filled++;
        t.live++;
    }

    /** Replaces the word of an object that has one. */
    static void set(Object o, long word) {
        change(o, word);
    }

    static void remove(Object o) {
        change(o, 0);
    }

    private static void change(Object o, long word) {
        int h = spread(System.identityHashCode(o));
        Table[] all = shards;
        int shard = h >>> 26;
        synchronized (lock(all, shard)) {
            Table t = all[shard];
            int mask = t.keys.length - 1;
            for (int i = h & mask; t.keys[i] != null; i = i + 1 & mask) {
                if (t.keys[i] != o) {
                    continue;
                }
                U.putLongRelease(t.words, WORDS + 8L * i, word);
                if (word == 0) {
                    U.putReferenceRelease(t.keys, REFS + ((long) i << REF_SHIFT), REMOVED);
                    t.live--;
                }
                return;
            }
        }
    }

    /**
     * Drops the entries that do not count since {@link #onlyMarked}, shard by shard, beside the program: look-ups take them for absent
     * already, and what is inserted meanwhile is marked.
     *
     * @return how many were dropped
     */
    static long retain() {
        Judge judge = onlyMarked;
        long dropped = 0;
        Table[] all = shards;
        for (int s = 0; s < SHARDS; s++) {
            synchronized (lock(all, s)) {
                Table t = all[s];
                int dead = 0;
                for (int i = 0; i < t.keys.length; i++) {
                    if (live(t, i) && !judge.alive(t.words[i])) {
                        U.putLongRelease(t.words, WORDS + 8L * i, 0);
                        U.putReferenceRelease(t.keys, REFS + ((long) i << REF_SHIFT), REMOVED);
                        dead++;
                    }
                }
                t.live -= dead;
                dropped += dead;
                if (t.filled - t.live > t.filled / 4) {
                    try {
                        U.putReferenceRelease(all, REFS + ((long) s << REF_SHIFT), compact(t));
                    } catch (OutOfMemoryError e) {
                        // It was for speed. What matters is that every entry is seen to: one that was absent must not come back.
                    }
                }
            }
        }
        return dropped;
    }

    private static Table compact(Table old) {
        Table t = new Table((int) Math.max(64, Long.highestOneBit(3L * old.live) << 1));
        for (int i = 0; i < old.keys.length; i++) {
            if (live(old, i)) {
                put(t, old.keys[i], old.words[i]);
            }
        }
        return t;
    }

    private static boolean live(Table t, int i) {
        return t.keys[i] != null && t.keys[i] != REMOVED;
    }

    static long size() {
        long n = 0;
        Table[] all = shards;
        for (int s = 0; s < SHARDS; s++) {
            n += all[s].live;
        }
        return n;
    }
}
