package io.towa.pool;

import io.towa.PoolException;
import io.towa.PoolException.Reason;
import io.towa.medium.Nvm;
import java.util.Arrays;
import jdk.internal.vm.annotation.DontInline;

/**
 * The log of one section ({@code Towa.atomically}): what the bytes were that it stores to, so that a crash in its midst can be undone.
 *
 * <pre>
 *   word UNDO --> block (4096)                                        1: no section has stored anything
 *                 0 next block, or 1 | 8 section number | 16 "TOWAUNDO" | 24 0
 *                 32 entry | 64 entry | ... | 4064 entry
 *   entry         0 position | 8 old bytes, the lower part | 16 u32 how many: 1 2 4 8 | 20 u32 1: a reference | 24 check
 * </pre>
 *
 * <p>What must always hold: an entry is durable, and reached from the word, before the store that it protects; the word is 1 only when all
 * stores of the section are durable, or undone. An entry counts if its check fits its content and the number of the first
 * block's section; numbers are never used twice in a pool (they lie below the word SECTIONS, which goes ahead of them), so what earlier sections left in
 * the blocks does not count, and neither does an entry that a crash tore: its store had not begun.
 *
 * <p>Rolling back reads the log and changes only what the log names; the word is cleared last. So it can be broken off and begun again. Each
 * byte is logged once, with what it was when the section began: so the order does not matter, and other threads' stores to other bytes
 * are not touched. docs/format.md has the format for other readers.
 *
 * <p>All but {@link #open} is called inside the gate, by the section's thread, or by who has the gate shut.
 */
public final class UndoLog {
    static final int NEXT = 0;
    static final int SECTION = 8;
    static final int MAGIC_AT = 16;
    static final int ENTRIES = 32;
    static final int ENTRY = 32;
    static final int OLD = 8;
    static final int BYTES = 16;
    static final int KIND = 20;
    static final int CHECK = 24;
    static final int BLOCK = 4096;
    static final int PER_BLOCK = (BLOCK - ENTRIES) / ENTRY;
    /** "TOWAUNDO". */
    static final long MAGIC = 0x4f444e5541574f54L;
    /** Blocks that are kept for the next section. */
    private static final int KEEP = 16;
    /** Section numbers that are taken at once: so few are lost with a crash that 2^63 are enough, and the word is stored to seldom. */
    private static final long NUMBERS = 1 << 20;

    private static volatile Thread owner;
    private static Allocator allocator;
    /** The present section's, or the last one's. */
    private static long number;
    /** What the word SECTIONS says: greater than every number that was used. */
    private static long reserved;
    private static final LoggedBytes LOGGED = new LoggedBytes();
    private static long[] blocks = new long[KEEP];
    /** Blocks at hand, those in use; entries in the last of these, and how many of them are durable; whether it is reached from the word. */
    private static int have;
    private static int used;
    private static int entries;
    private static int durable;
    private static boolean reached;

    private UndoLog() {}

    /** Hears what the log keeps alive. */
    public interface Visitor {
        void block(long at);

        /** @param reference position of the replica that the old bytes refer to; 0 if they are no reference, or null */
        void entry(long at, long reference);
    }

    /** Rolls back what a crash left in the midst of, and begins with an empty log. */
    public static void open(PoolFile pool, Allocator blocksFrom) {
        allocator = blocksFrom;
        owner = null;
        // Numbers below it may have been used.
        number = Nvm.getLong(Layout.SECTIONS);
        reserved = number;
        have = 0;
        used = 0;
        entries = 0;
        LOGGED.clear();
        long first = Nvm.getLong(Layout.UNDO);
        if (first != Layout.NONE) {
            rollBack(pool.name(), first, Nvm.getLong(Layout.FRONTIER));
        }
    }

    private static void rollBack(String pool, long first, long frontier) {
        long[] found = new long[64];
        int n = 0;
        long section = 0;
        scan:
        for (long block = first, seen = 0; block != Layout.NONE; block = Nvm.getLong(block + NEXT), seen++) {
            if (block < Layout.HEAP || block % BLOCK != 0 || block + BLOCK > frontier || seen > frontier / BLOCK) {
                throw damaged(pool, block);
            }
            if (block == first) {
                section = Nvm.getLong(block + SECTION);
            }
            if (Nvm.getLong(block + MAGIC_AT) != MAGIC || Nvm.getLong(block + SECTION) != section) {
                // A block is durable before it is led to.
                throw damaged(pool, block);
            }
            for (int i = 0; i < PER_BLOCK; i++) {
                long e = block + ENTRIES + (long) i * ENTRY;
                if (Nvm.getLong(e + CHECK) != check(section, Nvm.getLong(e), Nvm.getLong(e + OLD), Nvm.getLong(e + BYTES))) {
                    break scan;
                }
                if (n == found.length) {
                    found = Arrays.copyOf(found, 2 * n);
                }
                found[n++] = e;
            }
        }
        for (int i = 0; i < n; i++) {
            int bytes = Nvm.getInt(found[i] + BYTES);
            long at = Nvm.getLong(found[i]);
            if (at < Layout.HEAP || at + bytes > frontier || bytes < 1 || bytes > 8 || at % bytes != 0) {
                throw damaged(pool, found[i]);
            }
        }
        for (int i = n - 1; i >= 0; i--) {
            restore(found[i]);
        }
        Nvm.fence();
        Nvm.putLongDurably(Layout.UNDO, Layout.NONE);
    }

    private static PoolException damaged(String pool, long at) {
        return new PoolException(Reason.DAMAGED, pool + ": the undo log at " + at + " is damaged; restore the file from a copy");
    }

    static long check(long section, long at, long old, long bytesAndKind) {
        return mix(mix(mix(mix(section) ^ at) ^ old) ^ bytesAndKind);
    }

    /** The finalizer of splitmix64. */
    private static long mix(long z) {
        z = (z ^ z >>> 30) * 0xbf58476d1ce4e5b9L;
        z = (z ^ z >>> 27) * 0x94d049bb133111ebL;
        return z ^ z >>> 31;
    }

    /** Whether the next {@link #begin} stores to the pool. */
    public static boolean writesToBegin() {
        return number + 1 >= reserved;
    }

    /** This thread's stores are logged from now on; nobody else is in a section. */
    public static void begin() {
        if (++number >= reserved) {
            // Durable before an entry is that has such a number.
            reserved = number + NUMBERS;
            Nvm.putLongDurably(Layout.SECTIONS, reserved);
        }
        owner = Thread.currentThread();
    }

    /** The section is over: all its stores, which are durable by now, stay. */
    public static void end() {
        owner = null;
        if (used > 0) {
            Nvm.putLongDurably(Layout.UNDO, Layout.NONE);
        }
        used = 0;
        entries = 0;
        have = Math.min(have, KEEP);
        LOGGED.clear();
    }

    /** Whether this thread is in a section. */
    public static boolean isMine() {
        return owner == Thread.currentThread();
    }

    /** Entries of this thread's section so far. */
    public static long entries() {
        return used == 0 ? 0 : (long) (used - 1) * PER_BLOCK + entries;
    }

    /** Stores the old bytes again that the entries from number {@code from} on hold; they stay in the log, where they do no harm. */
    public static void undo(long from) {
        for (long i = entries() - 1; i >= from; i--) {
            restore(entry(i));
        }
        Nvm.fence();
    }

    /**
     * What was stored since entry number {@code from} was the next stays, whatever becomes of this thread's section: it is durable, and its entries count no more. One
     * store ends them all, for entries count up to the first whose check does not fit; the others go before new ones are written in their places.
     */
    public static void keep(long from) {
        long n = entries();
        for (long i = from; i < n; i++) {
            long e = entry(i);
            LOGGED.remove(Nvm.getLong(e), Nvm.getInt(e + BYTES));
            long unlike = ~Nvm.getLong(e + CHECK);
            if (i == from) {
                Nvm.putLongDurably(e + CHECK, unlike);
            } else {
                Nvm.putLong(e + CHECK, unlike);
                Nvm.writeBack(e + CHECK, 8);
            }
        }
        if (n > from) {
            Nvm.fence();
            used = (int) (from / PER_BLOCK) + 1;
            entries = (int) (from % PER_BLOCK);
            durable = entries;
            reached = true;
        }
    }

    private static long entry(long i) {
        return blocks[(int) (i / PER_BLOCK)] + ENTRIES + i % PER_BLOCK * ENTRY;
    }

    private static void restore(long entry) {
        long at = Nvm.getLong(entry);
        int bytes = Nvm.getInt(entry + BYTES);
        Nvm.putBits(at, Nvm.getLong(entry + OLD), bytes);
        Nvm.writeBack(at, bytes);
    }

    /**
     * If this thread is in a section, the log has room for one store of at most 8 bytes when this returns.
     *
     * @throws PoolException FULL: it has not
     */
    public static void reserve() {
        // Of 8 bytes each may be an entry, if those beside it are logged.
        if (owner == Thread.currentThread() && used == have && (used == 0 || entries + 8 > PER_BLOCK)) {
            takeBlock();
        }
    }

    /** Before primitives are stored to the pool: their old bytes are logged, if this thread is in a section. */
    public static void before(long at, long bytes) {
        if (owner == Thread.currentThread()) {
            log(at, bytes, 0);
        }
    }

    /**
     * As {@link #before}, for references.
     *
     * @return whether this thread is in a section
     */
    public static boolean beforeReferences(long at, long bytes) {
        if (owner != Thread.currentThread()) {
            return false;
        }
        log(at, bytes, 1);
        return true;
    }

    @DontInline
    private static void log(long at, long bytes, int kind) {
        try {
            for (long word = at & -8; word < at + bytes; word += 8) {
                int missing = LoggedBytes.mask(word, at, at + bytes) & ~LOGGED.get(word);
                // The greatest aligned pieces of what is missing.
                for (int size = 8; missing != 0; size >>= 1) {
                    int piece = (1 << size) - 1;
                    for (int from = 0; from < 8; from += size) {
                        if ((missing >>> from & piece) == piece) {
                            append(word + from, size, kind);
                            LOGGED.add(word, piece << from);
                            missing &= ~(piece << from);
                        }
                    }
                }
            }
        } finally {
            // Also if there was no room for all: what is noted as logged must be.
            publish();
        }
    }

    private static void append(long at, int bytes, int kind) {
        if (used == 0 || entries == PER_BLOCK) {
            publish();
            openBlock();
        }
        long e = blocks[used - 1] + ENTRIES + (long) entries * ENTRY;
        long old = Nvm.getBits(at, bytes);
        Nvm.putLong(e, at);
        Nvm.putLong(e + OLD, old);
        Nvm.putInt(e + BYTES, bytes);
        Nvm.putInt(e + KIND, kind);
        Nvm.putLong(e + CHECK, check(number, at, old, bytes | (long) kind << 32));
        entries++;
    }

    private static void openBlock() {
        if (used == have) {
            takeBlock();
        }
        long block = blocks[used++];
        entries = 0;
        durable = 0;
        reached = false;
        Nvm.putLong(block + NEXT, Layout.NONE);
        Nvm.putLong(block + SECTION, number);
        Nvm.putLong(block + MAGIC_AT, MAGIC);
        Nvm.putLong(block + MAGIC_AT + 8, 0);
    }

    private static void takeBlock() {
        Allocator.Cache cache = allocator.acquire();
        try {
            if (have == blocks.length) {
                blocks = Arrays.copyOf(blocks, 2 * have);
            }
            blocks[have] = allocator.allocate(cache, BLOCK);
            have++;
        } finally {
            allocator.release(cache);
        }
    }

    /** All entries are durable and reached from the word when this returns. */
    private static void publish() {
        if (used == 0 || durable == entries) {
            return;
        }
        long block = blocks[used - 1];
        long from = reached ? ENTRIES + (long) durable * ENTRY : 0;
        Nvm.writeBack(block + from, ENTRIES + (long) entries * ENTRY - from);
        Nvm.fence();
        durable = entries;
        if (!reached) {
            reached = true;
            Nvm.putLongDurably(used == 1 ? Layout.UNDO : blocks[used - 2] + NEXT, block);
        }
    }

    /** Tells {@code v} what must not be freed: the log's blocks, the replicas that rolling back would store to, and those it would refer to. */
    public static void visit(Visitor v) {
        for (int i = 0; i < have; i++) {
            v.block(blocks[i]);
        }
        for (int b = 0; b < used; b++) {
            int n = b == used - 1 ? entries : PER_BLOCK;
            for (int i = 0; i < n; i++) {
                long e = blocks[b] + ENTRIES + (long) i * ENTRY;
                v.entry(Nvm.getLong(e), Nvm.getInt(e + KIND) == 1 ? Nvm.getLong(e + OLD) : 0);
            }
        }
    }
}
