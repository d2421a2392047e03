package io.towa.pool;

import io.towa.PoolException;
import io.towa.PoolException.Reason;
import io.towa.medium.Nvm;
import io.towa.medium.SystemCalls;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.channels.FileChannel;

/**
 * The room that a pool's file has on its file system. What can run out runs out here, as an error, and not at a store to the mapping, as
 * a signal.
 *
 * <p>The first store to a clean page of a shared mapping faults, and the file system then needs a block for every byte of the folio that
 * the page is in, up to the end of the file. (A folio is what the page cache keeps as one; read-ahead makes large ones.) So:
 *
 * <ul>
 * <li>Blocks are allocated ahead of the frontier, and at opening below it, up to the end of the largest folio that can begin below it.
 * Blocks that are allocated and were never written will do: no file system that has been tried fails for want of a block to note that they
 * are written now (ext4 writes zeros instead of splitting an extent).
 * <li>Opening gives the file blocks of its own where it shares them with a copy ({@code cp --reflink}, a snapshot).
 * <li>A new file is one whose blocks are written in place, on file systems that write elsewhere otherwise (Btrfs).
 * </ul>
 *
 * <p>Memory file systems need the blocks of what is stored to, and no more. A private mapping needs none at all: commits write to the
 * file, and say if that fails. Blocks are allocated for it all the same, so that a store is refused, and not a commit.
 */
final class Room {
    private static final int ALLOCATE_STEP = 16 << 20;
    private static final int TURN = 1 << 16;

    private final String name;
    private final FileChannel channel;
    private final int descriptor;
    /** Bytes that the heap can have. What the file has behind them is no room: a word that commits write. */
    private final long capacity;
    private final boolean faults;
    private long allocatedTo;

    /** The file is mapped, has its final size, at least {@code capacity}, and {@link Nvm} is attached. */
    Room(String name, FileChannel channel, long capacity) throws IOException {
        this.name = name;
        this.channel = channel;
        descriptor = SystemCalls.descriptor(channel);
        this.capacity = capacity;
        faults = Nvm.medium() != Nvm.PRIVATE && !SystemCalls.isMemory(descriptor);
    }

    /**
     * The file is empty, and is to be mapped for sharing. Most file systems write in place, and do not know the wish. Where it is granted
     * the file system has no checksums of the file, so it is not wished for a pool that is committed to, which does without.
     */
    static void writeInPlace(FileChannel channel) {
        SystemCalls.writeInPlace(SystemCalls.descriptor(channel));
    }

    static void fill(FileChannel channel, long from, long to) throws IOException {
        ByteBuffer zeros = ByteBuffer.allocateDirect(TURN);
        for (long at = from; at < to;) {
            zeros.clear().limit((int) Math.min(zeros.capacity(), to - at));
            at += channel.write(zeros, at);
        }
    }

    /** The end of the last folio that a store below {@code to} can meet, as far as the heap may reach; where a store needs no more than its own block, {@code to}. */
    private long folios(long to) {
        return faults ? Math.min(capacity, to + Disk.FOLIO - 1 & -Disk.FOLIO) : to;
    }

    /** When this returns no store below the frontier can fail for want of room. */
    void open(long frontier) {
        if (faults) {
            ownBlocks(frontier);
        }
        try {
            fillHoles(folios(frontier));
            allocatedTo = folios(frontier);
        } catch (IOException e) {
            // A part of what lies behind the frontier may have been allocated, and there is nothing in it.
            SystemCalls.punch(descriptor, frontier, folios(frontier) - frontier);
            throw new PoolException(Reason.FULL, name + ": the file has holes (a sparse copy?) and the file system has no room for them ("
                + e.getMessage() + "); make room, or open it elsewhere", e);
        }
    }

    /**
     * When this returns no store below {@code to} can fail for want of room.
     *
     * @throws PoolException FULL: nothing has changed
     */
    void reach(long to) {
        if (to <= allocatedTo) {
            return;
        }
        long ahead = Math.max(to, Math.min(capacity, allocatedTo + ALLOCATE_STEP));
        if (!allocate(folios(ahead)) && !allocate(folios(to))) {
            throw new PoolException(Reason.FULL, name + ": the file system has no room for " + (folios(to) - allocatedTo)
                + " bytes more; make room and store again");
        }
    }

    private boolean allocate(long to) {
        if (!SystemCalls.allocate(descriptor, allocatedTo, to - allocatedTo)) {
            // A file system without fallocate, or a full one: writing says which.
            try {
                fill(channel, allocatedTo, to);
            } catch (IOException e) {
                // A part of it may have been allocated. It must not stay: others need room, too, and the file system itself does.
                SystemCalls.punch(descriptor, allocatedTo, to - allocatedTo);
                return false;
            }
        }
        allocatedTo = to;
        return true;
    }

    /**
     * A copy may have come without the blocks of its zeros ({@code cp --sparse}). Blocks that are allocated and were never written look
     * like holes, too; to allocate them again costs next to nothing.
     */
    private void fillHoles(long end) throws IOException {
        long hole = SystemCalls.hole(descriptor, 0);
        if (hole < 0 || hole >= end || SystemCalls.allocate(descriptor, hole, end - hole)) {
            return;
        }
        while (hole >= 0 && hole < end) {
            long data = SystemCalls.data(descriptor, hole);
            long to = data < 0 ? end : Math.min(end, data);
            fill(channel, hole, to);
            hole = SystemCalls.hole(descriptor, to);
        }
    }

    /** Writes the bytes again whose blocks another file has as well, with what they hold: stopping anywhere changes nothing. */
    private void ownBlocks(long frontier) {
        try {
            boolean any = false;
            long[] next = SystemCalls.shared(descriptor, 0, frontier);
            while (next != null) {
                rewrite(next[0], Math.min(next[1], frontier));
                any = true;
                next = SystemCalls.shared(descriptor, next[1], frontier);
            }
            if (any) {
                channel.force(false);
            }
        } catch (IOException e) {
            throw new PoolException(Reason.FULL, name + ": the file shares blocks with a copy of it, and the file system has no room for"
                + " blocks of its own (" + e.getMessage() + "); make room, or open it elsewhere", e);
        }
    }

    private void rewrite(long from, long to) throws IOException {
        Disk disk = new Disk.Channel(channel);
        ByteBuffer b = ByteBuffer.allocateDirect(TURN);
        for (long at = from; at < to; at += b.limit()) {
            b.clear().limit((int) Math.min(b.capacity(), to - at));
            disk.read(b, at);
            disk.write(b.flip(), at);
        }
    }
}
