package io.towa.graph;

import io.towa.PoolException;
import io.towa.PoolException.Reason;
import io.towa.medium.Nvm;
import io.towa.pool.Layout;
import jdk.internal.misc.Unsafe;

/**
 * Which replicas the walk of a recovery has met, and the index of each one's object.
 *
 * <p>In the pool, a mark bears the number of its recovery: the number grows, durably, before the first mark is set, so marks that an interrupted
 * recovery left are simply stale (RBP, "mark number"). Where the pool must not be stored to (a private mapping would copy every page) or the number has come
 * to its end, the marks are kept in DRAM: 4 bytes for 32 of the pool.
 *
 * <p>What must always hold: no mark in the pool bears a number that a later recovery uses. So before the number begins again at 1, the
 * marks of all replicas that the walk reached are zero, durably; until then every recovery finds the last number, and uses marks in DRAM.
 */
abstract class Marks {
    private Marks() {}

    /** Index of the object of the replica at {@code at}; -1 if nobody has claimed it. */
    abstract long find(long at);

    /** Claims the replica at {@code at} for the object {@code index}: the result is that, or the index of who came first. */
    abstract long claim(long at, long index);

    /** Marks for one recovery of the attached pool. */
    static Marks begin(String pool, long frontier) {
        long last = Nvm.getLong(Layout.MARK_NUMBER);
        if (last < 1 || last > Layout.MAX_MARK_NUMBER) {
            throw new PoolException(Reason.DAMAGED, pool + ": mark number " + last + " is none; restore the file from a copy");
        }
        if (Nvm.medium() == Nvm.PRIVATE || last == Layout.MAX_MARK_NUMBER) {
            return new InDram(frontier);
        }
        Nvm.putLongDurably(Layout.MARK_NUMBER, last + 1);
        return new InPool(last + 1);
    }

    /** After a complete walk: if the numbers have come to their end, they begin again. */
    static void end(Found found) {
        if (Nvm.medium() == Nvm.PRIVATE || Nvm.getLong(Layout.MARK_NUMBER) < Layout.MAX_MARK_NUMBER) {
            return;
        }
        for (int c = 0; c < found.chunks(); c++) {
            Found.Chunk chunk = found.chunk(c);
            for (int i = 0; i < chunk.count; i++) {
                Nvm.putLong(chunk.positions[i] + Layout.MARK, 0);
                Nvm.writeBack(chunk.positions[i] + Layout.MARK, 8);
            }
        }
        Nvm.fence();
        Nvm.putLongDurably(Layout.MARK_NUMBER, 1);
    }

    /** In the replicas' headers. */
    private static final class InPool extends Marks {
        private static final long INDEX = (1L << Layout.MARK_SHIFT) - 1;
        private final long number;

        InPool(long number) {
            this.number = number;
        }

        @Override
        long find(long at) {
            long mark = Nvm.getLong(at + Layout.MARK);
            return mark >>> Layout.MARK_SHIFT == number ? mark & INDEX : -1;
        }

        @Override
        long claim(long at, long index) {
            long mark = Nvm.getLong(at + Layout.MARK);
            for (;;) {
                if (mark >>> Layout.MARK_SHIFT == number) {
                    return mark & INDEX;
                }
                if (Nvm.compareAndSetLong(at + Layout.MARK, mark, number << Layout.MARK_SHIFT | index)) {
                    return index;
                }
                mark = Nvm.getLong(at + Layout.MARK);
            }
        }
    }

    /** An int for every 32 bytes, of which no two replicas have the same; made in pieces when first met. Holds index + 1. */
    private static final class InDram extends Marks {
        private static final Unsafe U = Unsafe.getUnsafe();
        private static final int PIECE_SHIFT = 21;
        private static final int INTS = 1 << PIECE_SHIFT - 5;
        private final int[][] pieces;

        InDram(long frontier) {
            pieces = new int[(int) (frontier >>> PIECE_SHIFT) + 1][];
        }

        private int[] piece(long at) {
            int i = (int) (at >>> PIECE_SHIFT);
            int[] p = (int[]) U.getReferenceAcquire(pieces, U.arrayBaseOffset(int[][].class) + (long) i * U.arrayIndexScale(int[][].class));
            return p != null ? p : make(i);
        }

        private synchronized int[] make(int i) {
            if (pieces[i] == null) {
                U.putReferenceRelease(pieces, U.arrayBaseOffset(int[][].class) + (long) i * U.arrayIndexScale(int[][].class), new int[INTS]);
            }
            return pieces[i];
        }

        private static long offset(long at) {
            return Unsafe.ARRAY_INT_BASE_OFFSET + ((at >>> 5 & INTS - 1) << 2);
        }

        @Override
        long find(long at) {
            return (U.getIntAcquire(piece(at), offset(at)) & 0xffffffffL) - 1;
        }

        @Override
        long claim(long at, long index) {
            int before = U.compareAndExchangeInt(piece(at), offset(at), 0, (int) (index + 1));
            return before == 0 ? index : (before & 0xffffffffL) - 1;
        }
    }
}
