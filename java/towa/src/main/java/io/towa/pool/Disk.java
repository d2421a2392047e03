package io.towa.pool;

import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.channels.FileChannel;

/** A file as commits use it; tests put their own in its place. What is written is on the disk, in any order, when {@link #force} has returned. */
interface Disk {
    /** Fills what is left of {@code into}, from {@code at} on. @return false if the file ends before */
    boolean read(ByteBuffer into, long at) throws IOException;

    void write(ByteBuffer from, long at) throws IOException;

    void force() throws IOException;

    void truncate(long size) throws IOException;

    long size() throws IOException;

    /**
     * Writes these bytes again as they are read. A page that the kernel holds clean is not synced by {@link #force}, and after a sync that failed the pages are
     * clean though the device never got them: written again, they are.
     */
    default void rewrite(long from, long to) throws IOException {
        ByteBuffer b = ByteBuffer.allocateDirect((int) Math.min(1 << 20, Math.max(1, to - from)));
        for (long at = from; at < to; at += b.limit()) {
            b.clear().limit((int) Math.min(b.capacity(), to - at));
            read(b, at);
            b.flip();
            if (!b.hasRemaining()) {
                return;
            }
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
        public void truncate(long size) throws IOException {
            channel.truncate(size);
        }

        @Override
        public long size() throws IOException {
            return channel.size();
        }
    }
}
