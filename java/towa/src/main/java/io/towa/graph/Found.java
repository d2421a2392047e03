package io.towa.graph;

import java.util.Arrays;
import jdk.internal.misc.Unsafe;

/**
 * The objects that a recovery has made so far, by index, each with its replica's position and its identity hash, spread as {@link Replicas} does.
 *
 * <pre>
 *   chunk   while the walk runs   in the order in which a thread met them: what lies side by side in the pool lies so here
 *           afterwards            ordered by shards of {@link Replicas}: |  shard 0  |  1  |    2    | ...
 * </pre>
 *
 * <p>An index is a chunk's number and a place in it; a chunk belongs to one thread, which alone adds to it. What must always hold: an entry's position is stored
 * before its index is published by a mark, its object some time after; so who comes by a mark waits for the object, and a mark that no recovery has made shows by
 * the position. Once a chunk is {@linkplain Chunk#arrange() arranged}, indices mean nothing.
 */
final class Found {
    static final int SHIFT = 12;
    static final int SIZE = 1 << SHIFT;
    private static final Unsafe U = Unsafe.getUnsafe();
    private static final long REFS = Unsafe.ARRAY_OBJECT_BASE_OFFSET;
    private static final long REF_SCALE = Unsafe.ARRAY_OBJECT_INDEX_SCALE;

    /** Objects that one thread has made. */
    static final class Chunk {
        final int number;
        final Object[] objects = new Object[SIZE];
        final long[] positions = new long[SIZE];
        final int[] spreads = new int[SIZE];
        /** Entries whose claim succeeded. */
        int count;
        /** When it is arranged, where the entries of each shard end. */
        private int[] ends;

        Chunk(int number) {
            this.number = number;
        }

        long nextIndex() {
            return (long) number << SHIFT | count;
        }

        /** Prepares the next entry; it counts when {@link #publish} has its object. */
        void prepare(long position, int spread) {
            U.putLongRelease(positions, Unsafe.ARRAY_LONG_BASE_OFFSET + 8L * count, position);
            spreads[count] = spread;
        }

        void publish(Object o) {
            U.putReferenceRelease(objects, REFS + REF_SCALE * count, o);
            count++;
        }

        /** Orders the entries by shards, when the walk is over. Each exchange brings one entry to its shard. */
        void arrange() {
            int[] next = new int[Replicas.SHARDS];
            for (int i = 0; i < count; i++) {
                next[Replicas.shard(spreads[i])]++;
            }
            ends = new int[Replicas.SHARDS];
            for (int shard = 0, end = 0; shard < Replicas.SHARDS; shard++) {
                int begin = end;
                end += next[shard];
                next[shard] = begin;
                ends[shard] = end;
            }
            for (int shard = 0; shard < Replicas.SHARDS; shard++) {
                while (next[shard] < ends[shard]) {
                    int i = next[shard];
                    int belongs = Replicas.shard(spreads[i]);
                    if (belongs != shard) {
                        exchange(i, next[belongs]);
                    }
                    next[belongs]++;
                }
            }
        }

        private void exchange(int i, int j) {
            Object object = objects[i];
            objects[i] = objects[j];
            objects[j] = object;
            long position = positions[i];
            positions[i] = positions[j];
            positions[j] = position;
            int spread = spreads[i];
            spreads[i] = spreads[j];
            spreads[j] = spread;
        }

        private int begin(int shard) {
            return shard == 0 ? 0 : ends[shard - 1];
        }

        private int count(int shard) {
            return ends[shard] - begin(shard);
        }

    /** Null while its thread still makes it. */
        Object object(int i) {
            return U.getReferenceAcquire(objects, REFS + REF_SCALE * i);
        }

        long position(int i) {
            return U.getLongAcquire(positions, Unsafe.ARRAY_LONG_BASE_OFFSET + 8L * i);
        }
    }

    /** All entries of one shard, side by side: one thread's, for one shard after the other. */
    static final class Shard {
        int count;
        Object[] objects = new Object[0];
        long[] positions = new long[0];
        int[] spreads = new int[0];
        /** For {@link Replicas.Loading}. */
        int[] entryAt = new int[0];

        private void room(int entries) {
            count = entries;
            if (entries > objects.length) {
                int room = (int) Math.min(Integer.MAX_VALUE - 8, entries + (long) entries / 8);
                objects = new Object[room];
                positions = new long[room];
                spreads = new int[room];
            }
        }
    }

    /** Gathers the entries of a shard, when all chunks are arranged. */
    void gather(int number, Shard into) {
        int count = 0;
        for (int c = 0; c < used; c++) {
            count = Math.addExact(count, chunks[c].count(number));
        }
        into.room(count);
        int at = 0;
        for (int c = 0; c < used; c++) {
            Chunk chunk = chunks[c];
            int begin = chunk.begin(number);
            int n = chunk.count(number);
            System.arraycopy(chunk.objects, begin, into.objects, at, n);
            System.arraycopy(chunk.positions, begin, into.positions, at, n);
            System.arraycopy(chunk.spreads, begin, into.spreads, at, n);
            at += n;
        }
    }

    private volatile Chunk[] chunks = new Chunk[256];
    private volatile int used;

    synchronized Chunk add() {
        Chunk[] all = chunks;
        if (used == all.length) {
            all = Arrays.copyOf(all, 2 * used);
        }
        Chunk c = new Chunk(used);
        all[used] = c;
        // Volatile stores: whoever finds a number finds the chunk.
        chunks = all;
        used++;
        return c;
    }

    int chunks() {
        return used;
    }

    /** Null if there is none of that number. */
    Chunk chunk(long number) {
        Chunk[] all = chunks;
        return number >= 0 && number < all.length ? all[(int) number] : null;
    }

    long size() {
        long n = 0;
        for (int i = 0; i < used; i++) {
            n += chunks[i].count;
        }
        return n;
    }
}
