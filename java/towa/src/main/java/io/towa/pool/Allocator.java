package io.towa.pool;

import io.towa.PoolException;
import io.towa.PoolException.Reason;
import java.util.Map;
import java.util.TreeMap;

/**
 * Blocks of the pool for replicas and records.
 *
 * <pre>
 *   segment of a size class  | block | block | ... | rest |        large block   | segment | segment | ... |
 * </pre>
 *
 * All of what is used and what is free lives in DRAM: a bit per block. Persistent is only the frontier, which is moved, durably and after the
 * file's blocks are allocated, before a segment beyond it is given out. So a crash at any moment loses nothing but bits, which recovery
 * sets again for what it reaches; a full disk shows itself here, never at a store to the mapping.
 *
 * <p>What must always hold: a block is given out once until a sweep frees it; blocks are freed by {@link #sweep} alone, while no operation
 * on durable objects runs. Source: RBP, section 4.6 (40 size classes, segments of 4 KB, metadata in DRAM).
 */
public final class Allocator {
    private static final int CHUNK_SHIFT = 16;
    private static final int CHUNK = 1 << CHUNK_SHIFT;
    private static final int FREE = 0;
    private static final int LARGE = SizeClasses.COUNT + 1;
    private static final int LARGE_REST = SizeClasses.COUNT + 2;
    /** Not looked into by a recovery that did not look everywhere: there may be blocks, and nobody knows of which size. */
    private static final int UNKNOWN = SizeClasses.COUNT + 3;
    /** Bytes that may be free without anybody's knowing. */
    private static final long MUCH = 4 << 20;
    /** Segments by which the frontier advances: 1 MiB. */
    private static final int STEP = 256;

    /** What is known of 65536 segments. */
    private static final class Chunk {
        /** FREE, 1 + size class, LARGE, LARGE_REST or UNKNOWN. */
        final byte[] kind = new byte[CHUNK];
        /** Two words a segment: a bit per block; of a large block its number of segments. */
        final long[] used = new long[2 * CHUNK];
        final long[] marks = new long[2 * CHUNK];
    }

    /** Segments from which one batch allocates without asking anyone; one owner at a time. */
    public static final class Cache {
        private final int[] current = new int[SizeClasses.COUNT];
        private Cache next;

        private Cache() {
            clear();
        }

        private void clear() {
            for (int i = 0; i < current.length; i++) {
                current[i] = -1;
            }
        }
    }

    private final PoolFile pool;
    private final Chunk[] chunks;
    private final TreeMap<Integer, Integer> freeRuns = new TreeMap<>();
    private final IntStack[] partial = new IntStack[SizeClasses.COUNT];
    private Cache idle;
    /** The first segment never given out, and the first beyond the durable frontier. */
    private int top;
    private int frontier;
    private volatile long allocated;
    private volatile long allocatedSinceSweep;
    private volatile long usedAfterSweep;
    /** Blocks are born marked: a collection is under way. */
    private volatile boolean colouring;
    /** There may be segments that are UNKNOWN. */
    private volatile boolean incomplete;
    /** And so much of the pool may be free that it is not to grow before that is known. */
    private boolean wasteful;

    public Allocator(PoolFile pool, long capacity, long frontier) {
        this.pool = pool;
        chunks = new Chunk[(int) (capacity / Layout.SEGMENT >>> CHUNK_SHIFT) + 1];
        for (int i = 0; i < partial.length; i++) {
            partial[i] = new IntStack();
        }
        top = (int) (frontier / Layout.SEGMENT);
        this.frontier = top;
    }

    public synchronized Cache acquire() {
        Cache c = idle;
        if (c == null) {
            return new Cache();
        }
        idle = c.next;
        return c;
    }

    public synchronized void release(Cache c) {
        c.next = idle;
        idle = c;
    }

    /**
     * A block of at least {@code bytes} bytes, a multiple of 16; its content is anything.
     *
     * @throws PoolException FULL: nothing has changed
     */
    public long allocate(Cache cache, long bytes) {
        int c = SizeClasses.of(bytes);
        if (c < 0) {
            return allocateLarge(bytes);
        }
        for (;;) {
            int segment = cache.current[c];
            if (segment >= 0) {
                int block = firstFree(segment, SizeClasses.blocks(c));
                if (block >= 0) {
                    if (colouring) {
                        setBit(chunk(segment).marks, 2 * (segment & CHUNK - 1) + (block >>> 6), 1L << block);
                    }
                    return (long) segment * Layout.SEGMENT + (long) block * SizeClasses.bytes(c);
                }
            }
            cache.current[c] = segmentFor(c);
        }
    }

    private int firstFree(int segment, int blocks) {
        long[] used = chunk(segment).used;
        int i = 2 * (segment & CHUNK - 1);
        for (int word = 0; word * 64 < blocks; word++) {
            int bit = Long.numberOfTrailingZeros(~used[i + word]);
            if (bit < 64 && word * 64 + bit < blocks) {
                used[i + word] |= 1L << bit;
                return word * 64 + bit;
            }
        }
        return -1;
    }

    private synchronized int segmentFor(int sizeClass) {
        if (partial[sizeClass].size > 0) {
            return partial[sizeClass].pop();
        }
        int segment = takeRun(1);
        chunk(segment).kind[segment & CHUNK - 1] = (byte) (1 + sizeClass);
        count(Layout.SEGMENT);
        return segment;
    }

    private synchronized long allocateLarge(long bytes) {
        int n = Math.toIntExact((bytes + Layout.SEGMENT - 1) / Layout.SEGMENT);
        int first = takeRun(n);
        large(first, n);
        if (colouring) {
            setBit(chunk(first).marks, 2 * (first & CHUNK - 1), 1);
        }
        count((long) n * Layout.SEGMENT);
        return (long) first * Layout.SEGMENT;
    }

    private void large(int first, int n) {
        chunk(first).kind[first & CHUNK - 1] = LARGE;
        chunk(first).used[2 * (first & CHUNK - 1)] = n;
        for (int s = first + 1; s < first + n; s++) {
            chunk(s).kind[s & CHUNK - 1] = LARGE_REST;
        }
    }

    private void count(long bytes) {
        allocated += bytes;
        allocatedSinceSweep += bytes;
    }

    private int takeRun(int n) {
        for (Map.Entry<Integer, Integer> run : freeRuns.entrySet()) {
            if (run.getValue() >= n) {
                int first = run.getKey();
                int left = run.getValue() - n;
                freeRuns.remove(first);
                if (left > 0) {
                    freeRuns.put(first + n, left);
                }
                return first;
            }
        }
        if (top + n > frontier && wasteful) {
            throw new PoolException(Reason.FULL, pool.name() + ": it is not known yet what is free");
        }
        if (top + n > frontier) {
            long end = pool.advance((long) (top + n) * Layout.SEGMENT, (long) (top + n + STEP) / STEP * STEP * Layout.SEGMENT);
            frontier = (int) (end / Layout.SEGMENT);
        }
        int first = top;
        top += n;
        return first;
    }

    private Chunk chunk(int segment) {
        Chunk c = chunks[segment >>> CHUNK_SHIFT];
        return c != null ? c : newChunk(segment >>> CHUNK_SHIFT);
    }

    private synchronized Chunk newChunk(int i) {
        if (chunks[i] == null) {
            chunks[i] = new Chunk();
        }
        return chunks[i];
    }

    /** Bytes of the segments in use. */
    public long usedBytes() {
        return allocated;
    }

    public long allocatedSinceSweep() {
        return allocatedSinceSweep;
    }

    /** Bytes of the segments that were in use after the last sweep. */
    public long usedAfterSweep() {
        return usedAfterSweep;
    }

    /** From now on blocks are born marked, until the sweep; nothing may allocate meanwhile. */
    public void colour(boolean marked) {
        colouring = marked;
    }

    /** Whether a block may begin at {@code at}. */
    public boolean contains(long at) {
        return inHeap(at) && !isFree(at);
    }

    /** Whether there is room for a block at {@code at} below the end of the segments in use. */
    public boolean inHeap(long at) {
        return at >= Layout.HEAP && at % 16 == 0 && at <= (long) top * Layout.SEGMENT - Layout.DATA;
    }

    /** Whether the segment at {@code at} has no block. */
    public boolean isFree(long at) {
        int segment = (int) (at / Layout.SEGMENT);
        return chunk(segment).kind[segment & CHUNK - 1] == FREE;
    }

    /** Whether it is not known of all segments what is in them. Until the next sweep nothing is free but what lies beyond. */
    public boolean isIncomplete() {
        return incomplete;
    }

    /** Bytes of each block in the segment at {@code at}, which has blocks of a size class. */
    public int blockBytes(long at) {
        int segment = (int) (at / Layout.SEGMENT);
        return SizeClasses.bytes(chunk(segment).kind[segment & CHUNK - 1] - 1);
    }

    /** Where the block begins in which {@code at} lies. */
    public long blockAt(long at) {
        int segment = (int) (at / Layout.SEGMENT);
        int kind = chunk(segment).kind[segment & CHUNK - 1];
        while (kind == LARGE_REST) {
            segment--;
            kind = chunk(segment).kind[segment & CHUNK - 1];
        }
        long start = (long) segment * Layout.SEGMENT;
        return kind == LARGE ? start : at - (at - start) % SizeClasses.bytes(kind - 1);
    }

    /**
     * Marks the block at {@code at} as live. Threads may mark at once.
     *
     * @return whether it was not marked before
     */
    public boolean mark(long at) {
        int segment = (int) (at / Layout.SEGMENT);
        Chunk c = chunk(segment);
        int kind = c.kind[segment & CHUNK - 1];
        int block = kind == LARGE ? 0 : (int) (at % Layout.SEGMENT) / SizeClasses.bytes(kind - 1);
        return setBit(c.marks, 2 * (segment & CHUNK - 1) + (block >>> 6), 1L << block);
    }

    /**
     * Whether the block at {@code at} is marked; false where there is none. Anybody may ask at any time: also who got {@code at} before a sweep, and since then the
     * segment has gone, or belongs to a block of another kind.
     */
    public boolean marked(long at) {
        int segment = (int) (at / Layout.SEGMENT);
        Chunk c = chunk(segment);
        int kind = c.kind[segment & CHUNK - 1];
        if (kind == FREE || kind == LARGE_REST || kind == UNKNOWN) {
            return false;
        }
        int block = kind == LARGE ? 0 : (int) (at % Layout.SEGMENT) / SizeClasses.bytes(kind - 1);
        return (c.marks[2 * (segment & CHUNK - 1) + (block >>> 6)] & 1L << block) != 0;
    }

    /** Whether segments of this kind have the class of what is found there first. */
    private boolean isOpen(int kind) {
        return kind == UNKNOWN || kind == FREE;
    }

    /**
     * Whether a block of {@code bytes} bytes that a reference leads to can begin at {@code at}, by what was found in its segment before; of what is found there first,
     * in a recovery or where the last one did not look, follows the segment's class.
     */
    public boolean fits(long at, long bytes) {
        int segment = (int) (at / Layout.SEGMENT);
        int c = SizeClasses.of(bytes);
        if (c < 0) {
            return fitsLarge(at, bytes, segment);
        }
        if (SizeClasses.block(c, (int) at & Layout.SEGMENT - 1) < 0) {
            return false;
        }
        Chunk chunk = chunk(segment);
        byte kind = chunk.kind[segment & CHUNK - 1];
        if (isOpen(kind)) {
            synchronized (this) {
                if (isOpen(chunk.kind[segment & CHUNK - 1])) {
                    chunk.kind[segment & CHUNK - 1] = (byte) (1 + c);
                }
                kind = chunk.kind[segment & CHUNK - 1];
            }
        }
        return kind == 1 + c;
    }

    private synchronized boolean fitsLarge(long at, long bytes, int first) {
        if (at % Layout.SEGMENT != 0 || bytes > (long) top * Layout.SEGMENT - at) {
            return false;
        }
        int n = (int) ((bytes + Layout.SEGMENT - 1) / Layout.SEGMENT);
        if (chunk(first).kind[first & CHUNK - 1] == LARGE) {
            return chunk(first).used[2 * (first & CHUNK - 1)] == n;
        }
        for (int s = first; s < first + n; s++) {
            if (!isOpen(chunk(s).kind[s & CHUNK - 1])) {
                return false;
            }
        }
        large(first, n);
        return true;
    }

    /** Whether a block that fits would begin at {@code at}, whatever its size. */
    public boolean begins(long at) {
        int segment = (int) (at / Layout.SEGMENT);
        int kind = chunk(segment).kind[segment & CHUNK - 1];
        int within = (int) at & Layout.SEGMENT - 1;
        return kind == LARGE ? within == 0 : kind != FREE && kind < LARGE && SizeClasses.block(kind - 1, within) >= 0;
    }

    /**
     * Recovery: as {@link #fits}, and the block is {@linkplain #mark marked}.
     *
     * @return false if it does not fit, or is marked already: the pool is damaged
     */
    public boolean adopt(long at, long bytes) {
        return fits(at, bytes) && mark(at);
    }

    /**
     * Marks blocks of the segment at {@code at}: the first 64 by the bits of {@code low}, the others by those of {@code high}. One thread a segment.
     *
     * @return false if one of them is marked already
     */
    public boolean markAll(long at, long low, long high) {
        int segment = (int) (at / Layout.SEGMENT);
        long[] marks = chunk(segment).marks;
        int i = 2 * (segment & CHUNK - 1);
        if ((marks[i] & low | marks[i + 1] & high) != 0) {
            return false;
        }
        marks[i] |= low;
        marks[i + 1] |= high;
        return true;
    }

    private static boolean setBit(long[] words, int i, long bit) {
        if ((words[i] & bit) != 0) {
            return false;
        }
        long before = jdk.internal.misc.Unsafe.getUnsafe()
            .getAndBitwiseOrLong(words, jdk.internal.misc.Unsafe.ARRAY_LONG_BASE_OFFSET + 8L * i, bit);
        return (before & bit) == 0;
    }

    /**
     * What is marked is used, all else is free; then no mark is set. Nothing may allocate or mark meanwhile.
     *
     * @return bytes of the segments that are in use now
     */
    public synchronized long sweep() {
        forgetRoom();
        long used = 0;
        int runStart = -1;
        int first = (int) (Layout.HEAP / Layout.SEGMENT);
        for (int s = first; s < top;) {
            int n = sweepOne(s);
            if (n < 0) {
                runStart = runStart < 0 ? s : runStart;
                s -= n;
                continue;
            }
            if (runStart >= 0) {
                freeRuns.put(runStart, s - runStart);
                runStart = -1;
            }
            used += (long) n * Layout.SEGMENT;
            s += n;
        }
        if (runStart >= 0) {
            top = runStart;
        }
        used(used);
        incomplete = false;
        wasteful = false;
        return used;
    }

    /**
     * In place of the first {@link #sweep}, after a recovery that has not looked everywhere: all below the frontier is used, marked or not, and no mark is set. The
     * next sweep, after a collector has marked what is reached, knows what is free.
     *
     * @param kept as many bytes as were in use after the last sweep of an earlier run; 0: there was none
     */
    public synchronized void keepRest(long kept) {
        forgetRoom();
        unmark();
        int first = (int) (Layout.HEAP / Layout.SEGMENT);
        for (int from = first; from < top; from = (from | CHUNK - 1) + 1) {
            byte[] kind = chunk(from).kind;
            int end = Math.min(CHUNK, top - (from & -CHUNK));
            for (int s = from & CHUNK - 1; s < end; s++) {
                kind[s] = kind[s] == FREE ? UNKNOWN : kind[s];
            }
        }
        used((long) (top - first) * Layout.SEGMENT);
        usedAfterSweep = Math.max(0, Math.min(kept, allocated));
        incomplete = true;
    }

    /**
     * From now on, if half of what is in use may be free, {@link #allocate} says FULL instead of letting the file grow, until the next sweep, or {@link #goOn}: many
     * runs, each too short for a collector of its own, must not add up.
     */
    public synchronized void holdBack() {
        wasteful = incomplete && allocated - usedAfterSweep >= Math.max(MUCH, usedAfterSweep);
    }

    /** The pool may grow, whatever may be free in it. */
    public synchronized void goOn() {
        wasteful = false;
    }

    /** Nothing is free any more but what lies beyond the frontier. */
    private void forgetRoom() {
        colouring = false;
        freeRuns.clear();
        for (IntStack s : partial) {
            s.size = 0;
        }
        for (Cache c = idle; c != null; c = c.next) {
            c.clear();
        }
    }

    private void used(long bytes) {
        allocated = bytes;
        usedAfterSweep = bytes;
        allocatedSinceSweep = 0;
    }

    /** No mark is set, and nothing is freed: a collection that failed. */
    public synchronized void unmark() {
        colouring = false;
        for (int i = 0; i < chunks.length; i++) {
            if (chunks[i] != null) {
                java.util.Arrays.fill(chunks[i].marks, 0);
            }
        }
    }

    /** Segments that are used from {@code s} on (a large block, or one); negative: that are free. */
    private int sweepOne(int s) {
        Chunk c = chunk(s);
        int i = s & CHUNK - 1;
        int kind = c.kind[i];
        if (kind == FREE || kind == LARGE_REST || kind == UNKNOWN) {
            c.kind[i] = FREE;
            return -1;
        }
        long low = c.marks[2 * i];
        long high = c.marks[2 * i + 1];
        c.marks[2 * i] = 0;
        c.marks[2 * i + 1] = 0;
        if (kind == LARGE) {
            int n = (int) c.used[2 * i];
            if (low != 0) {
                return n;
            }
            for (int k = s; k < s + n; k++) {
                chunk(k).kind[k & CHUNK - 1] = FREE;
                chunk(k).used[2 * (k & CHUNK - 1)] = 0;
            }
            return -n;
        }
        c.used[2 * i] = low;
        c.used[2 * i + 1] = high;
        int live = Long.bitCount(low) + Long.bitCount(high);
        if (live == 0) {
            c.kind[i] = FREE;
            return -1;
        }
        if (live < SizeClasses.blocks(kind - 1)) {
            partial[kind - 1].push(s);
        }
        return 1;
    }

    /** A stack of numbers. */
    private static final class IntStack {
        private int[] values = new int[16];
        private int size;

        void push(int v) {
            if (size == values.length) {
                values = java.util.Arrays.copyOf(values, 2 * size);
            }
            values[size++] = v;
        }

        int pop() {
            return values[--size];
        }
    }

    /** For messages. */
    static PoolException full(String name, long capacity, long wanted) {
        return new PoolException(Reason.FULL, name + ": no room: " + wanted + " bytes needed, capacity " + capacity
            + "; open it with a greater capacity, or remove objects");
    }
}
