package io.towa.graph;

import java.util.Arrays;
import jdk.internal.misc.Unsafe;

/**
 * The objects that a recovery has made so far, by index, each with its replica's position and its identity hash, spread as {@link Replicas} does.
 *
 * <p>An index is a chunk's number and a place in it. A chunk belongs to one shard of {@link Replicas}, so that afterwards the table of
 * each shard is filled by itself, within the processor's cache; and to one thread, which alone adds to it. What must always hold: an entry's position is stored before
 * its index is published by a mark, its object some time after; so who comes by a mark waits for the object, and a mark that no recovery has made shows by the position.
 */
final class Found {
    static final int SHIFT = 8;
    static final int SIZE = 1 << SHIFT;
    private static final Unsafe U = Unsafe.getUnsafe();
    private static final long REFS = Unsafe.ARRAY_OBJECT_BASE_OFFSET;
    private static final long REF_SCALE = Unsafe.ARRAY_OBJECT_INDEX_SCALE;

    /** Objects of one shard that one thread has made. */
    static final class Chunk {
        final int number;
        final int shard;
        final Object[] objects = new Object[SIZE];
        final long[] positions = new long[SIZE];
        final int[] spreads = new int[SIZE];
        /** Entries whose claim succeeded. */
        int count;

        Chunk(int number, int shard) {
            this.number = number;
            this.shard = shard;
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

        /** Null while its thread still makes it. */
        Object object(int i) {
            return U.getReferenceAcquire(objects, REFS + REF_SCALE * i);
        }

        long position(int i) {
            return U.getLongAcquire(positions, Unsafe.ARRAY_LONG_BASE_OFFSET + 8L * i);
        }
    }

    private volatile Chunk[] chunks = new Chunk[256];
    private volatile int used;

    synchronized Chunk add(int shard) {
        Chunk[] all = chunks;
        if (used == all.length) {
            all = Arrays.copyOf(all, 2 * used);
        }
        Chunk c = new Chunk(used, shard);
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
