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
 *   0   "TOWAREDO" | 8 u32 version 1 | 12 u32 4096 | 16 uuid | 32 u64 sequence | 40 u64 pages n | 48 u64 CRC32C of [0, 48), numbers, pages | 56 0
 *   64  n page numbers, u32 | 0 up to a multiple of 4096
 *   ..  n pages
 * </pre>
 *
 * <p>A commit: (1) log written, (2) log synced, (3) its pages written to the pool, (4) pool synced, (5) log invalidated, not synced. Stopping
 * before the end of 2: the log is torn, or whole by luck; the pool's file is at the commit before, or brought to this one. From 2 to the end of 4:
 * the log is whole, and applied again at opening. After 4: the file is at this commit with the log or without it, and stays so until the
 * next log is whole: nothing but commits writes to those pages. So the next commit may overwrite this log in any order.
 *
 * <p>What must always hold: a log is overwritten only after its pages are in the pool's file, synced; it is invalid durably before the pool is written to
 * in another way (closed, opened for {@code PROCESS}).
 */
final class RedoLog {
    static final int PAGE = DirtyPages.PAGE;
    private static final int HEADER = 64;
    private static final int SUM_AT = 48;
    private static final int VERSION = 1;
    /** "TOWAREDO". */
    private static final long MAGIC = 0x4f44455241574f54L;
    private static final int TURN = 256 * PAGE;

    private final Disk log;
    private final long uuidHigh;
    private final long uuidLow;
    private final CRC32C sum = new CRC32C();
    /** Header and page numbers of the commit that is being written. */
    private ByteBuffer head;
    private long next;

    RedoLog(Disk log, long uuidHigh, long uuidLow) {
        this.log = log;
        this.uuidHigh = uuidHigh;
        this.uuidLow = uuidLow;
    }

    private static long pagesAt(long count) {
        return HEADER + 4 * count + PAGE - 1 & -PAGE;
    }

    /** A commit of these pages begins; their content follows, in order. */
    void begin(long sequence, int[] pages) {
        head = ByteBuffer.allocate((int) pagesAt(pages.length)).order(ByteOrder.LITTLE_ENDIAN);
        head.putLong(0, MAGIC).putInt(8, VERSION).putInt(12, PAGE).putLong(16, uuidHigh).putLong(24, uuidLow).putLong(32, sequence);
        head.putLong(40, pages.length);
        for (int i = 0; i < pages.length; i++) {
            head.putInt(HEADER + 4 * i, pages[i]);
        }
        sum.reset();
        sum.update(head.array(), 0, SUM_AT);
        sum.update(head.array(), HEADER, 4 * pages.length);
        next = pagesAt(pages.length);
    }

    void append(ByteBuffer content) throws IOException {
        sum.update(content.duplicate());
        long at = next;
        next += content.remaining();
        log.write(content.duplicate(), at);
    }

    /** All content is there: the commit counts when this returns. */
    void finish() throws IOException {
        head.putLong(SUM_AT, sum.getValue());
        log.write(head, 0);
        head = null;
        log.force();
    }

    /** The log counts no longer; durably only after {@link Disk#force}. */
    void invalidate(long keep) throws IOException {
        log.write(ByteBuffer.allocate(8), 0);
        if (log.size() > keep) {
            log.truncate(keep);
        }
    }

    /** Whose commit a log holds. */
    enum State {
        /** Nobody's: empty, torn, or applied. */
        NONE,
        /** A file that is no log. */
        FOREIGN,
        /** Another pool's. */
        OTHERS,
        OURS
    }

    State state() throws IOException {
        ByteBuffer h = ByteBuffer.allocate(HEADER).order(ByteOrder.LITTLE_ENDIAN);
        boolean whole = log.read(h, 0);
        if (h.position() >= 8 && h.getLong(0) != MAGIC && h.getLong(0) != 0 || h.position() > 0 && h.position() < 8) {
            return State.FOREIGN;
        }
        long n = h.getLong(40);
        if (!whole || h.getLong(0) != MAGIC || h.getInt(8) != VERSION || h.getInt(12) != PAGE || n <= 0 || n > Integer.MAX_VALUE / 8
            || pagesAt(n) + n * PAGE > log.size() || h.getLong(SUM_AT) != sumOf(h, n)) {
            return State.NONE;
        }
        return h.getLong(16) == uuidHigh && h.getLong(24) == uuidLow ? State.OURS : State.OTHERS;
    }

    /** Whether it bears our name, whole or not. */
    boolean named() throws IOException {
        ByteBuffer h = ByteBuffer.allocate(8).order(ByteOrder.LITTLE_ENDIAN);
        return log.read(h, 0) && h.getLong(0) == MAGIC;
    }

    private long sumOf(ByteBuffer header, long n) throws IOException {
        CRC32C crc = new CRC32C();
        crc.update(header.array(), 0, SUM_AT);
        add(crc, HEADER, 4 * n);
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

    /** Writes the pages of a whole log to the pool's file, and syncs that. */
    void apply(Disk pool) throws IOException {
        ByteBuffer h = ByteBuffer.allocate(HEADER).order(ByteOrder.LITTLE_ENDIAN);
        log.read(h, 0);
        int n = (int) h.getLong(40);
        ByteBuffer numbers = ByteBuffer.allocate(4 * n).order(ByteOrder.LITTLE_ENDIAN);
        log.read(numbers, HEADER);
        ByteBuffer page = ByteBuffer.allocateDirect(PAGE);
        for (int i = 0; i < n; i++) {
            page.clear();
            log.read(page, pagesAt(n) + (long) i * PAGE);
            pool.write(page.flip(), (numbers.getInt(4 * i) & 0xffffffffL) * PAGE);
        }
        pool.force();
    }

    void force() throws IOException {
        log.force();
    }
}
