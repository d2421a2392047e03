package io.towa.graph;

import io.towa.pool.Allocator;
import io.towa.pool.Layout;
import io.towa.pool.SizeClasses;
import java.util.Arrays;
import jdk.internal.misc.Unsafe;

/**
 * Whose replica lies where: a slot for every block of the pool in which an object has been met.
 *
 * <pre>
 *   position   | chunk | segment in it | offset |        chunks[ ][ ] ──► slots of one segment: as many as there are blocks of its size class, or one more
 *                                                         that is never used; of a large block one, with its first segment
 * </pre>
 *
 * An {@linkplain #hashAt identity hash that is made from the position} leads from an object to its slot: a look-up is a few loads and a comparison, and objects
 * whose replicas lie side by side have slots side by side. Slots cost 4 bytes an object (8 where references are not compressed).
 *
 * <p>What must always hold: the slots of a segment are as many as the size class of its blocks says, so they are dropped when the segment is free
 * ({@link #dropFree}); a slot has one writer at a time, its block's owner, but for {@link #claim}.
 */
final class PositionTable {
    private static final Unsafe U = Unsafe.getUnsafe();
    private static final int SEGMENT_SHIFT = Integer.numberOfTrailingZeros(Layout.SEGMENT);
    /** 4 MB of the pool. */
    private static final int CHUNK_SHIFT = 10;
    private static final int CHUNK = 1 << CHUNK_SHIFT;
    private static final long REFS = Unsafe.ARRAY_OBJECT_BASE_OFFSET;
    private static final int REF_SHIFT = Integer.numberOfTrailingZeros(Unsafe.ARRAY_OBJECT_INDEX_SCALE);

    /** Grows by replacement; each chunk is made once. */
    private volatile Object[][][] chunks = new Object[64][][];

    // ---- positions as hashes

    private static final int MOST = 0x7fffffff;
    private static final int FACTOR = 0x2c1b3c6d;
    private static final int INVERSE = inverse(FACTOR);

    /** Newton: each step doubles the bits that are right. */
    private static int inverse(int odd) {
        int x = odd;
        for (int i = 0; i < 5; i++) {
            x *= 2 - odd * x;
        }
        return x;
    }

    /**
     * The identity hash that leads to {@code position}: another for each, and spread as users of hashes expect it. 0, which is no hash, for positions from
     * 32 GB on.
     */
    static int hashAt(long position) {
        long units = position >>> 4;
        if (units > MOST) {
            return 0;
        }
        int x = (int) units * FACTOR & MOST;
        return x ^ x >>> 15;
    }

    /** The position to which {@code hash} leads: that of its object's replica, if it was made so. */
    static long positionOf(int hash) {
        int x = hash ^ hash >>> 15 ^ hash >>> 30;
        return (long) (x * INVERSE & MOST) << 4;
    }

    // ---- slots

    private static long at(int i) {
        return REFS + ((long) i << REF_SHIFT);
    }

    /**
     * The slot of block n is slot n, without a division. For n blocks of b bytes are n b bytes, which times the number of slots s, by the segment's S bytes, is
     * n + n (b s - S) / S; and b s exceeds S by less than b, n b is less than S, so the fraction is less than 1.
     */
    private static long slot(long position, Object[] slots) {
        return at((int) (position & Layout.SEGMENT - 1) * slots.length >>> SEGMENT_SHIFT);
    }

    private static int slotsFor(long bytes) {
        int c = SizeClasses.of(bytes);
        return c < 0 ? 1 : (Layout.SEGMENT + SizeClasses.bytes(c) - 1) / SizeClasses.bytes(c);
    }

    /** The slots of the segment in which {@code position} lies; null if nothing was put there. */
    Object[] slots(long position) {
        Object[][][] all = chunks;
        long segment = position >>> SEGMENT_SHIFT;
        long c = segment >>> CHUNK_SHIFT;
        if (c >= all.length) {
            return null;
        }
        Object[][] chunk = (Object[][]) U.getReferenceAcquire(all, at((int) c));
        return chunk == null ? null : (Object[]) U.getReferenceAcquire(chunk, at((int) segment & CHUNK - 1));
    }

    /** The slots of the segment at {@code position}, in which a block of {@code bytes} bytes begins. */
    private Object[] make(long position, long bytes) {
        int segment = (int) (position >>> SEGMENT_SHIFT);
        Object[][] chunk = chunk(segment >>> CHUNK_SHIFT);
        Object[] slots = new Object[slotsFor(bytes)];
        Object[] first = (Object[]) U.compareAndExchangeReference(chunk, at(segment & CHUNK - 1), null, slots);
        return first == null ? slots : first;
    }

    private synchronized Object[][] chunk(int c) {
        Object[][][] all = chunks;
        if (c >= all.length) {
            all = Arrays.copyOf(all, Math.max(c + 1, 2 * all.length));
            chunks = all;
        }
        if (all[c] == null) {
            U.putReferenceRelease(all, at(c), new Object[CHUNK][]);
        }
        return all[c];
    }

    /** What is in the slot of {@code position}, whatever number that is; null if nothing. */
    Object get(long position) {
        Object[] slots = slots(position);
        return slots == null ? null : get(position, slots);
    }

    static Object get(long position, Object[] slots) {
        return U.getReferenceAcquire(slots, slot(position, slots));
    }

    /** Puts {@code o} into the slot of the block of {@code bytes} bytes at {@code position}. */
    void put(long position, long bytes, Object o) {
        Object[] slots = slots(position);
        if (slots == null) {
            slots = make(position, bytes);
        }
        U.putReferenceRelease(slots, slot(position, slots), o);
    }

    /** As {@link #put}, into a slot that was put to before. */
    void set(long position, Object o) {
        Object[] slots = slots(position);
        U.putReferenceRelease(slots, slot(position, slots), o);
    }

    /**
     * As {@link #put}, of several threads one.
     *
     * @param slots those that {@link #slots} has told before, or null
     * @return null, or what another thread has put there first
     */
    Object claim(long position, long bytes, Object[] slots, Object o) {
        if (slots == null) {
            slots = make(position, bytes);
        }
        return U.compareAndExchangeReference(slots, slot(position, slots), null, o);
    }

    // ---- recovery

    /**
     * Takes over all that {@code other}, which nobody puts to any more, has in its slots.
     *
     * @param copy {@code other} keeps its slots, for {@link #withdraw}. Else nothing fails for want of room once something is taken over
     */
    void absorb(PositionTable other, boolean copy) {
        Object[][][] all = other.chunks;
        for (int c = 0; c < all.length; c++) {
            if (all[c] != null) {
                chunk(c);
            }
        }
        for (int c = 0; c < all.length; c++) {
            for (int s = 0; all[c] != null && s < CHUNK; s++) {
                if (all[c][s] != null) {
                    absorb(all[c][s], chunk(c), s, copy);
                }
            }
        }
    }

    private static void absorb(Object[] slots, Object[][] to, int s, boolean copy) {
        Object[] here = (Object[]) U.getReferenceAcquire(to, at(s));
        if (here == null) {
            here = (Object[]) U.compareAndExchangeReference(to, at(s), null, copy ? slots.clone() : slots);
        }
        // Others have objects in that segment: their slots are theirs.
        for (int i = 0; here != null && i < slots.length; i++) {
            if (slots[i] != null) {
                U.putReferenceRelease(here, at(i), slots[i]);
            }
        }
    }

    /** Empties the slots that hold what {@code other} has, which was absorbed as a copy, or in part. */
    void withdraw(PositionTable other) {
        Object[][][] all = other.chunks;
        for (int c = 0; c < all.length && c < chunks.length; c++) {
            for (int s = 0; all[c] != null && chunks[c] != null && s < CHUNK; s++) {
                Object[] here = chunks[c][s];
                for (int i = 0; all[c][s] != null && here != null && i < here.length; i++) {
                    if (all[c][s][i] != null && here[i] == all[c][s][i]) {
                        U.putReferenceRelease(here, at(i), null);
                    }
                }
            }
        }
    }

    /** Pieces of {@link #markAll}. */
    int pieces() {
        return chunks.length;
    }

    /**
     * Marks the blocks whose slots hold something, in one piece of the pool; threads may do so at once, each with other pieces.
     *
     * @return 0, or the segment in which a block is marked already
     */
    long markAll(Allocator allocator, int piece) {
        Object[][] chunk = chunks[piece];
        for (int s = 0; chunk != null && s < CHUNK; s++) {
            Object[] slots = chunk[s];
            long segment = ((long) piece << CHUNK_SHIFT) + s << SEGMENT_SHIFT;
            if (slots != null && !markAll(allocator, segment, slots)) {
                return segment;
            }
        }
        return 0;
    }

    private static boolean markAll(Allocator allocator, long segment, Object[] slots) {
        long low = 0;
        long high = 0;
        int blocks = blocks(allocator, segment, slots);
        for (int i = 0; i < blocks; i++) {
            if (slots[i] != null && i < 64) {
                low |= 1L << i;
            } else if (slots[i] != null) {
                high |= 1L << i;
            }
        }
        return allocator.markAll(segment, low, high);
    }

    private static int blocks(Allocator allocator, long segment, Object[] slots) {
        return slots.length == 1 ? 1 : Layout.SEGMENT / allocator.blockBytes(segment);
    }

    // ---- the collector

    /**
     * Empties the slots of blocks without a mark. Nobody may put to those meanwhile.
     *
     * @return how many
     */
    long dropUnmarked(Allocator allocator) {
        long dropped = 0;
        Object[][][] all = chunks;
        for (int c = 0; c < all.length; c++) {
            Object[][] chunk = all[c];
            for (int s = 0; chunk != null && s < CHUNK; s++) {
                Object[] slots = (Object[]) U.getReferenceAcquire(chunk, at(s));
                if (slots != null) {
                    dropped += dropUnmarked(allocator, ((long) c << CHUNK_SHIFT) + s << SEGMENT_SHIFT, slots);
                }
            }
        }
        return dropped;
    }

    private static long dropUnmarked(Allocator allocator, long segment, Object[] slots) {
        long dropped = 0;
        int blocks = blocks(allocator, segment, slots);
        for (int i = 0; i < blocks; i++) {
            if (U.getReferenceAcquire(slots, at(i)) != null && !allocator.marked(segment + (blocks == 1 ? 0 : i * allocator.blockBytes(segment)))) {
                U.putReferenceRelease(slots, at(i), null);
                dropped++;
            }
        }
        return dropped;
    }

    /** Drops the slots of segments that are free; nobody uses the table meanwhile. */
    void dropFree(Allocator allocator) {
        Object[][][] all = chunks;
        for (int c = 0; c < all.length; c++) {
            Object[][] chunk = all[c];
            for (int s = 0; chunk != null && s < CHUNK; s++) {
                if (chunk[s] != null && allocator.isFree(((long) c << CHUNK_SHIFT) + s << SEGMENT_SHIFT)) {
                    chunk[s] = null;
                }
            }
        }
    }
}
