package io.towa.medium;

import java.util.Arrays;
import jdk.internal.misc.Unsafe;

/**
 * One bit per 4096-byte page of the pool: stored to since the last commit, or since a backup began or last took them.
 *
 * <p>A bit is set after the store to its page and before the operation that stored leaves the gate; the committer takes the bits while
 * the gate is closed. So no store is ever between two commits.
 */
public final class DirtyPages {
    public static final int PAGE = 4096;
    private static final int SHIFT = 12;
    private static final Unsafe U = Unsafe.getUnsafe();

    private final long[] bits;

    public DirtyPages(long capacity) {
        bits = new long[(int) ((capacity >>> SHIFT) + 63 >>> 6)];
    }

    /** Marks those that {@code other} marks, which keeps them. No other thread marks in either at that time. */
    public void add(DirtyPages other) {
        for (int i = 0; i < bits.length; i++) {
            bits[i] |= other.bits[i];
        }
    }

    /** Marks in both others what this marks; none is dirty here afterwards. No other thread marks in any at that time. */
    public void moveTo(DirtyPages one, DirtyPages other) {
        for (int i = 0; i < bits.length; i++) {
            one.bits[i] |= bits[i];
            other.bits[i] |= bits[i];
            bits[i] = 0;
        }
    }

    public void mark(long at, long bytes) {
        long last = at + bytes - 1 >>> SHIFT;
        for (long page = at >>> SHIFT; page <= last; page++) {
            int word = (int) (page >>> 6);
            long bit = 1L << page;
            if ((bits[word] & bit) == 0) {
                U.getAndBitwiseOrLong(bits, Unsafe.ARRAY_LONG_BASE_OFFSET + 8L * word, bit);
            }
        }
    }

    /** How many pages are dirty, more or less, while others mark. */
    public int count() {
        int count = 0;
        for (int i = 0; i < bits.length; i++) {
            count += Long.bitCount(bits[i]);
        }
        return count;
    }

    /** The numbers of the dirty pages, in order; none is dirty afterwards. Nobody may mark meanwhile. */
    public int[] take() {
        int[] pages = new int[count()];
        int n = 0;
        for (int i = 0; i < bits.length; i++) {
            long left = bits[i];
            if (n + Long.bitCount(left) > pages.length) {
                // Before anything of this word is forgotten.
                pages = Arrays.copyOf(pages, pages.length * 2 + 64);
            }
            bits[i] = 0;
            while (left != 0) {
                pages[n++] = (i << 6) + Long.numberOfTrailingZeros(left);
                left &= left - 1;
            }
        }
        return n == pages.length ? pages : Arrays.copyOf(pages, n);
    }
}
