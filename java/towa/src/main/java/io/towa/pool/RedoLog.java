package io.towa.pool;

import io.towa.medium.DirtyPages;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.util.zip.CRC32C;

/**
 * One commit beside the pool's file, {@code NAME.log}: whole pages that are to be written there.
 *
 * <pre>
 *   0     whose log: "TOWAREDO" | 8 u32 version 1 | 12 u32 4096 | 16 uuid | 32 u64 stamp | 40 u64 first | 48 u64 CRC32C of [0, 48) | 0
 *   4096  commit:    "TOWAPAGE" | 8 u64 stamp | 16 u64 number | 24 u64 pages n | 32 u64 CRC32C of [0, 32), page numbers, pages | 0
 *   4160             n page numbers, u32 | 0 up to a multiple of 4096
 *   ..               n pages
 * </pre>
 *
 * The pool's file says in two places how far it is: at {@link Layout#DONE}, near its beginning, the last commit whose pages it has; behind the
 * heap, at its capacity, the last one whose pages were begun to be written.
 *
 * <p>A commit: (1) log written, (2) log synced, (3) into the pool: number behind the heap, pages, number at {@code DONE}, (4) pool synced. Stopping
 * before the end of 2: the log is torn, and the pool's file is at the commit before; or the log is whole by luck, and the pool is brought to
 * this commit. From 2 to the end of 4: the log is whole, and applied again at opening. After 4: the file is at this commit, and applying
 * the log changes nothing. So the next commit may overwrite this log in any order.
 *
 * <p>A copy of the file that was read from its beginning to its end while the program ran has pages of several commits only if one began between the read
 * of {@code DONE} and the read behind the heap: then the numbers differ by more than the log's own commit, and {@link Opening} refuses.
 *
 * <p>What must always hold: a log is overwritten only after its pages are in the pool's file, synced.
 */
final class RedoLog {
    static final int PAGE = DirtyPages.PAGE;
    /** Where the commit begins. */
    static final int COMMIT = PAGE;
    private static final int HEADER = 64;
    private static final int OWNER_SUM = 48;
    private static final int SUM = 32;
    private static final int VERSION = 1;
    /** "TOWAREDO". */
    private static final long MAGIC = 0x4f44455241574f54L;
    /** "TOWAPAGE". */
    private static final long COMMIT_MAGIC = 0x4547415041574f54L;
    private static final int TURN = 256 * PAGE;

    private final Disk log;
    private final long uuidHigh;
    private final long uuidLow;
    private final CRC32C sum = new CRC32C();
    /** Of the opening that the log is of, and the commit that the pool was at then. */
    private long stamp;
    private long first;
    /** What the commit's header says; pages 0: there is none, or not as much as its magic. */
    private long number;
    private int pages;
    private boolean whole;
    /** Header and page numbers of the commit that is being written. */
    private ByteBuffer head;
    private long next;
    /** Something of a commit was written here by this opening, whether or not it came to its end. */
    private boolean written;

    RedoLog(Disk log, long uuidHigh, long uuidLow) {
        this.log = log;
        this.uuidHigh = uuidHigh;
        this.uuidLow = uuidLow;
    }

    private static long pagesAt(long count) {
        return COMMIT + (HEADER + 4 * count + PAGE - 1 & -PAGE);
    }

    long stamp() {
        return stamp;
    }

    long first() {
        return first;
    }

    long number() {
        return number;
    }

    /** Whether this opening has begun no commit, so that the pool needs no log. */
    boolean untouched() {
        return !written;
    }

    int pages() {
        return pages;
    }

    boolean whole() {
        return whole;
    }

    /** Makes this the log of an opening of a pool that is at commit {@code at}: without a commit, durably when this returns. */
    void begin(long ofOpening, long at) throws IOException {
        stamp = ofOpening;
        first = at;
        number = at;
        pages = 0;
        whole = false;
        written = false;
        ByteBuffer h = ByteBuffer.allocate(2 * PAGE).order(ByteOrder.LITTLE_ENDIAN);
        h.putLong(0, MAGIC).putInt(8, VERSION).putInt(12, PAGE).putLong(16, uuidHigh).putLong(24, uuidLow).putLong(32, stamp).putLong(40, first);
        h.putLong(OWNER_SUM, sumOf(h, OWNER_SUM));
        log.write(h, 0);
        log.truncate(2 * PAGE);
        log.sync();
    }

    /** The commit after the last one begins, of these pages; their content follows, in order. One that does not come to its end has no number. */
    void begin(int[] pageNumbers) {
        long n = number + 1;
        head = ByteBuffer.allocate((int) pagesAt(pageNumbers.length) - COMMIT).order(ByteOrder.LITTLE_ENDIAN);
        head.putLong(0, COMMIT_MAGIC).putLong(8, stamp).putLong(16, n).putLong(24, pageNumbers.length);
        for (int i = 0; i < pageNumbers.length; i++) {
            head.putInt(HEADER + 4 * i, pageNumbers[i]);
        }
        sum.reset();
        sum.update(head.array(), 0, SUM);
        sum.update(head.array(), HEADER, 4 * pageNumbers.length);
        next = pagesAt(pageNumbers.length);
    }

    void append(ByteBuffer content) throws IOException {
        sum.update(content.duplicate());
        long at = next;
        next += content.remaining();
        written = true;
        log.write(content.duplicate(), at);
    }

    /** All content is there: the commit counts when this returns. */
    void finish() throws IOException {
        head.putLong(SUM, sum.getValue());
        log.write(head.duplicate(), COMMIT);
        log.sync();
        number = head.getLong(16);
        pages = (int) head.getLong(24);
        whole = true;
        head = null;
    }

    /** Gives back what the log takes beyond {@code keep} bytes; its commit, which is in the pool by now, need not stay whole. */
    void trim(long keep) throws IOException {
        if (log.size() > keep) {
            log.truncate(keep);
        }
    }

    /** Whose log it is. */
    enum State {
        /** Nothing, or zeros: a log that was made and never got its name. */
        EMPTY,
        /** A file that is no log. */
        FOREIGN,
        /** A log, but the page that says whose is not whole. */
        DAMAGED,
        /** Another pool's. */
        OTHERS,
        OURS
    }

    /** Reads what there is. */
    State read() throws IOException {
        ByteBuffer h = ByteBuffer.allocate(HEADER).order(ByteOrder.LITTLE_ENDIAN);
        boolean there = log.read(h, 0);
        if (h.getLong(0) == 0) {
            return zeros(h) ? State.EMPTY : State.FOREIGN;
        }
        if (h.getLong(0) != MAGIC) {
            return State.FOREIGN;
        }
        if (!there || h.getLong(OWNER_SUM) != sumOf(h, OWNER_SUM) || h.getInt(8) != VERSION || h.getInt(12) != PAGE) {
            return State.DAMAGED;
        }
        stamp = h.getLong(32);
        first = h.getLong(40);
        readCommit();
        return h.getLong(16) == uuidHigh && h.getLong(24) == uuidLow ? State.OURS : State.OTHERS;
    }

    private static boolean zeros(ByteBuffer b) {
        for (int i = 0; i < b.capacity(); i++) {
            if (b.get(i) != 0) {
                return false;
            }
        }
        return true;
    }

    private void readCommit() throws IOException {
        ByteBuffer h = ByteBuffer.allocate(HEADER).order(ByteOrder.LITTLE_ENDIAN);
        whole = false;
        pages = 0;
        if (!log.read(h, COMMIT) || h.getLong(0) != COMMIT_MAGIC || h.getLong(8) != stamp) {
            return;
        }
        long n = h.getLong(24);
        number = h.getLong(16);
        pages = n <= 0 || n > Integer.MAX_VALUE / 8 ? 0 : (int) n;
        whole = pages > 0 && pagesAt(n) + n * PAGE <= log.size() && h.getLong(SUM) == sumOfCommit(h, n);
    }

    private static long sumOf(ByteBuffer header, int bytes) {
        CRC32C crc = new CRC32C();
        crc.update(header.array(), 0, bytes);
        return crc.getValue();
    }

    private long sumOfCommit(ByteBuffer header, long n) throws IOException {
        CRC32C crc = new CRC32C();
        crc.update(header.array(), 0, SUM);
        add(crc, COMMIT + HEADER, 4 * n);
        add(crc, pagesAt(n), n * PAGE);
        return crc.getValue();
    }

    private void add(CRC32C crc, long from, long bytes) throws IOException {
        ByteBuffer b = ByteBuffer.allocate((int) Math.min(TURN, bytes));
        for (long done = 0; done < bytes; done += b.limit()) {
            b.clear().limit((int) Math.min(b.capacity(), bytes - done));
            if (!log.read(b, from + done)) {
                // Shorter than its size said: no sum fits.
                return;
            }
            crc.update(b.flip());
        }
    }

    private int[] pageNumbers() throws IOException {
        ByteBuffer numbers = ByteBuffer.allocate(4 * pages).order(ByteOrder.LITTLE_ENDIAN);
        log.read(numbers, COMMIT + HEADER);
        int[] all = new int[pages];
        numbers.flip().asIntBuffer().get(all);
        return all;
    }

    /** Fills {@code into} with the beginning of what the commit has of a page. @return false if it does not have that page */
    boolean page(int wanted, ByteBuffer into) throws IOException {
        int[] all = pageNumbers();
        for (int i = 0; i < all.length; i++) {
            if (all[i] == wanted) {
                return log.read(into, pagesAt(pages) + (long) i * PAGE);
            }
        }
        return false;
    }

    /**
     * Writes every byte of a log that is whole again, and syncs it: what the page cache has of it is on the device then, whatever became of earlier syncs.
     *
     * @return whether it is still whole
     */
    boolean rewrite() throws IOException {
        log.rewrite(0, pagesAt(pages) + (long) pages * PAGE);
        log.sync();
        readCommit();
        return whole;
    }

    /** Writes the pages of a whole log to the pool's file, and syncs that. */
    void apply(Disk pool, long capacity) throws IOException {
        int[] all = pageNumbers();
        beginPages(pool, capacity, number);
        ByteBuffer page = ByteBuffer.allocateDirect(PAGE);
        for (int i = 0; i < all.length; i++) {
            page.clear();
            log.read(page, pagesAt(pages) + (long) i * PAGE);
            pool.write(page.flip(), (all[i] & 0xffffffffL) * PAGE);
        }
        endPages(pool, number);
        pool.sync();
    }

    /** Before the first page of commit {@code n} is written to the pool's file. */
    static void beginPages(Disk pool, long capacity, long n) throws IOException {
        putNumber(pool, capacity, n);
    }

    /** When all of them are. */
    static void endPages(Disk pool, long n) throws IOException {
        putNumber(pool, Layout.DONE, n);
    }

    private static void putNumber(Disk pool, long at, long n) throws IOException {
        pool.write(ByteBuffer.allocate(8).order(ByteOrder.LITTLE_ENDIAN).putLong(0, n), at);
    }

    /** One of those two numbers. */
    static long numberAt(Disk pool, long at) throws IOException {
        ByteBuffer b = ByteBuffer.allocate(8).order(ByteOrder.LITTLE_ENDIAN);
        pool.read(b, at);
        return b.getLong(0);
    }
}
