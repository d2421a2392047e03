package io.towa.graph;

import jdk.internal.misc.Unsafe;

/**
 * Which object has which replica, where the object's identity hash does not tell: it had one before it became durable, or has been durable before, or its replica lies
 * beyond what a hash can say.
 *
 * <p>64 shards by identity hash; a shard is an open-addressed pair of arrays, objects and words. Readers take no lock: an entry's word is stored before its key,
 * and a grown table is published whole.
 */
final class IdentityTable {
    private static final int SHARDS = 64;
    private static final int SHARD_SHIFT = 26;
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
            keys = new Object[capacity];
            words = new long[capacity];
        }
    }

    private final Table[] shards = new Table[SHARDS];
    private final Object[] locks = new Object[SHARDS];

    /** With room for {@code objects}. */
    IdentityTable(long objects) {
        long each = Math.max(64, objects * 2 / SHARDS);
        int capacity = (int) Math.min(1 << 28, Long.highestOneBit(each - 1) << 1);
        for (int i = 0; i < SHARDS; i++) {
            shards[i] = new Table(capacity);
            locks[i] = new Object();
        }
    }

    /** The identity hash, spread: the upper bits say which shard, the lower where in it. */
    private static int spread(int hash) {
        int h = hash * 0x9E3779B1;
        return h ^ h >>> 15;
    }

    /** The shard of those whose spread hash is {@code h}, as it is now. */
    private Table table(int h) {
        return (Table) U.getReferenceAcquire(shards, REFS + ((long) (h >>> SHARD_SHIFT) << REF_SHIFT));
    }

    private static Object key(Table t, int i) {
        return U.getReferenceAcquire(t.keys, REFS + ((long) i << REF_SHIFT));
    }

    /** The word of {@code o}, whose identity hash is {@code hash}; 0 if it is not here. */
    long find(Object o, int hash) {
        int h = spread(hash);
        Table t = table(h);
        int mask = t.keys.length - 1;
        for (int i = h & mask;; i = i + 1 & mask) {
            Object k = key(t, i);
            if (k == o) {
                for (;;) {
                    long word = U.getLongAcquire(t.words, WORDS + 8L * i);
                    Replicas.Judge judge = Replicas.judge();
                    if (judge == null || judge.alive(word)) {
                        return word;
                    }
                    if (judge.stillJudges()) {
                        return 0;
                    }
                }
            }
            if (k == null) {
                return 0;
            }
        }
    }

    /** The object with this identity hash whose replica is at {@code position}, which is not grey; null if it is not here. */
    Object at(int hash, long position) {
        int h = spread(hash);
        Table t = table(h);
        int mask = t.keys.length - 1;
        for (int i = h & mask;; i = i + 1 & mask) {
            Object k = key(t, i);
            if (k == null || k != REMOVED && U.getLongAcquire(t.words, WORDS + 8L * i) == position) {
                return k;
            }
        }
    }

    /**
     * Enters {@code o} with {@code word}, if it has none.
     *
     * @return 0 if entered, else the word that it has
     */
    long insert(Object o, int hash, long word) {
        int h = spread(hash);
        int shard = h >>> SHARD_SHIFT;
        synchronized (locks[shard]) {
            Table t = shards[shard];
            if (3L * (t.filled + 1) > 2L * t.keys.length) {
                t = grow(t);
                U.putReferenceRelease(shards, REFS + ((long) shard << REF_SHIFT), t);
            }
            int mask = t.keys.length - 1;
            int i = h & mask;
            for (Object k = t.keys[i]; k != null; k = t.keys[i]) {
                if (k == o) {
                    Replicas.Judge judge = Replicas.judge();
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

    private static Table grow(Table old) {
        int capacity = old.keys.length;
        while (3 * (old.live + 1) > capacity) {
            capacity *= 2;
        }
        Table t = new Table(capacity);
        for (int i = 0; i < old.keys.length; i++) {
            if (live(old, i)) {
                put(t, old.keys[i], old.words[i]);
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

    /** Replaces the word of an object that has one; 0 removes it. */
    void set(Object o, int hash, long word) {
        int h = spread(hash);
        int shard = h >>> SHARD_SHIFT;
        synchronized (locks[shard]) {
            Table t = shards[shard];
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
     * Drops the entries that {@code judge} says are dead.
     *
     * @return how many
     */
    long drop(Replicas.Judge judge) {
        long dropped = 0;
        for (int s = 0; s < SHARDS; s++) {
            synchronized (locks[s]) {
                Table t = shards[s];
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
                        U.putReferenceRelease(shards, REFS + ((long) s << REF_SHIFT), compact(t));
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

    long size() {
        long n = 0;
        for (int s = 0; s < SHARDS; s++) {
            n += shards[s].live;
        }
        return n;
    }
}
