package io.towa.pool;

import io.towa.medium.SystemCalls;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.channels.FileChannel;

/**
 * A file as openings and commits use it; tests put their own in its place. What is written is on the disk, in any order, when {@link #sync} has returned.
 *
 * <p>What must always hold: after a sync that failed, nothing is written to the file until its pages have left the cache ({@link #reload}). On ext4 a page
 * whose first write failed keeps its block, which the file system still counts as unwritten. Written again through that page, the data gets to the
 * device, the sync succeeds, and after a loss of power the block reads as zeros. So a sync is never tried again by the process that saw it
 * fail ({@link Committer}), and the next opening begins with a reload ({@link Opening}).
 */
interface Disk {
    /** As many bytes as the kernel keeps in one folio of small pages at most. It drops whole folios, so ranges to be evicted are of these. */
    int FOLIO = 8 << 20;

    /** Writes since the last sync may not be on the device, and no later sync of the same pages would say so. */
    final class SyncFailed extends IOException {
        private static final long serialVersionUID = 1;

        SyncFailed(IOException e) {
            super("a sync failed: " + e.getMessage(), e);
        }
    }

    /** Fills what is left of {@code into}, from {@code at} on. @return false if the file ends before */
    boolean read(ByteBuffer into, long at) throws IOException;

    void write(ByteBuffer from, long at) throws IOException;

    /** As {@link #sync}, which is what to call. */
    void force() throws IOException;

    /** @throws SyncFailed then the process gives the file up */
    default void sync() throws IOException {
        try {
            force();
        } catch (IOException e) {
            throw new SyncFailed(e);
        }
    }

    /** Lets the pages of this range that are clean leave the cache. It is advice, which not every file system takes. @param bytes 0: to the end */
    void evict(long from, long bytes);

    /**
     * From here on what is read is what the device has, and what is written goes through new pages. Dirty pages are synced first: only clean ones leave the cache.
     * The whole file goes, because one folio may hold pages of any use.
     */
    default void reload() throws IOException {
        sync();
        evict(0, 0);
    }

    void truncate(long size) throws IOException;

    long size() throws IOException;

    /**
     * Writes these bytes again as they are read, through new pages; {@code from} is a multiple of {@link #FOLIO}, and nothing is dirty. A page that the kernel holds
     * clean is not synced by {@link #sync}, and after a sync that failed the pages are clean though the device never got them: written again, they are.
     */
    default void rewrite(long from, long to) throws IOException {
        ByteBuffer b = ByteBuffer.allocateDirect((int) Math.min(FOLIO, Math.max(1, to - from)));
        for (long at = from; at < to; at += b.limit()) {
            b.clear().limit((int) Math.min(b.capacity(), to - at));
            read(b, at);
            b.flip();
            if (!b.hasRemaining()) {
                return;
            }
            evict(at, FOLIO);
            write(b.duplicate(), at);
        }
    }

    /** A file. */
    final class Channel implements Disk {
        private final FileChannel channel;

        Channel(FileChannel channel) {
            this.channel = channel;
        }

        @Override
        public boolean read(ByteBuffer into, long at) throws IOException {
            for (long p = at; into.hasRemaining();) {
                int n = channel.read(into, p);
                if (n < 0) {
                    return false;
                }
                p += n;
            }
            return true;
        }

        @Override
        public void write(ByteBuffer from, long at) throws IOException {
            for (long p = at; from.hasRemaining();) {
                p += channel.write(from, p);
            }
        }

        @Override
        public void force() throws IOException {
            channel.force(false);
        }

        @Override
        public void evict(long from, long bytes) {
            SystemCalls.dropCleanPages(channel, from, bytes);
        }

        @Override
        public void truncate(long size) throws IOException {
            channel.truncate(size);
        }

        @Override
        public long size() throws IOException {
            return channel.size();
        }
    }
}
