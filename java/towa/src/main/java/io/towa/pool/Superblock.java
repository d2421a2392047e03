package io.towa.pool;

import io.towa.Durability;
import io.towa.PoolException;
import io.towa.PoolException.Reason;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.channels.FileChannel;
import java.util.zip.CRC32C;

/**
 * The pool's superblock: two slots, of which the valid one with the greater sequence number counts. An update overwrites the other and is
 * synced, so at every moment one is whole.
 */
public final class Superblock {
    private static final int SUM_AT = 248;

    public long uuidHigh;
    public long uuidLow;
    public long seq;
    public long capacity;
    public long created;
    public boolean ready;
    public boolean clean;
    public Durability durability;

    /**
     * Reads the newer slot.
     *
     * @throws PoolException foreign, newer, or damaged: with the file's name and what to do
     */
    public static Superblock read(FileChannel file, String name) throws IOException {
        Superblock best = null;
        boolean magic = false;
        for (int slot = 0; slot < 2; slot++) {
            ByteBuffer b = ByteBuffer.allocate(Layout.SUPERBLOCK).order(ByteOrder.LITTLE_ENDIAN);
            while (b.hasRemaining() && file.read(b, (long) slot * Layout.SLOT + b.position()) > 0) {
                // a short read goes on
            }
            if (b.hasRemaining() || !magic(b)) {
                continue;
            }
            magic = true;
            if (b.getLong(SUM_AT) != sum(b)) {
                continue;
            }
            Superblock read = parse(b, name);
            if (best == null || read.seq > best.seq) {
                best = read;
            }
        }
        if (best == null) {
            throw magic
                ? new PoolException(Reason.DAMAGED, name + ": both superblocks are damaged; restore the file from a copy")
                : new PoolException(Reason.FOREIGN, name + ": not a Towa pool of the Java door; give the name of one, or of a file that does not exist yet");
        }
        return best;
    }

    private static boolean magic(ByteBuffer b) {
        for (int i = 0; i < Layout.MAGIC.length; i++) {
            if (b.get(i) != Layout.MAGIC[i]) {
                return false;
            }
        }
        return true;
    }

    private static long sum(ByteBuffer b) {
        CRC32C crc = new CRC32C();
        crc.update(b.array(), 0, SUM_AT);
        return crc.getValue();
    }

    private static Superblock parse(ByteBuffer b, String name) {
        if (b.getInt(8) > Layout.VERSION) {
            throw new PoolException(Reason.NEWER, name + ": made by a newer version of Towa (format " + b.getInt(8) + ", this one knows "
                + Layout.VERSION + "); use that version");
        }
        if (b.getInt(8) != Layout.VERSION || b.getInt(12) != 0) {
            throw new PoolException(Reason.DAMAGED, name + ": version " + b.getInt(8) + " with flags " + b.getInt(12) + " is not known");
        }
        Superblock s = new Superblock();
        s.uuidHigh = b.getLong(16);
        s.uuidLow = b.getLong(24);
        s.seq = b.getLong(32);
        s.capacity = b.getLong(40);
        s.created = b.getLong(48);
        s.ready = b.getInt(64) == 1;
        s.clean = b.getInt(68) == 1;
        s.durability = b.getInt(72) == 2 ? Durability.POWER : Durability.PROCESS;
        if (b.getLong(56) != Layout.HEAP || s.capacity < Layout.HEAP || s.capacity % Layout.SEGMENT != 0) {
            throw new PoolException(Reason.DAMAGED, name + ": the superblock names an impossible layout (heap " + b.getLong(56) + ", capacity "
                + s.capacity + ")");
        }
        return s;
    }

    /** Writes the slot that does not count yet, and syncs. */
    public void write(FileChannel file) throws IOException {
        seq++;
        ByteBuffer b = ByteBuffer.allocate(Layout.SUPERBLOCK).order(ByteOrder.LITTLE_ENDIAN);
        b.put(0, Layout.MAGIC).putInt(8, Layout.VERSION).putLong(16, uuidHigh).putLong(24, uuidLow).putLong(32, seq);
        b.putLong(40, capacity).putLong(48, created).putLong(56, Layout.HEAP).putInt(64, ready ? 1 : 0).putInt(68, clean ? 1 : 0);
        b.putInt(72, durability == Durability.POWER ? 2 : 1);
        b.putLong(SUM_AT, sum(b));
        long at = (seq & 1) * Layout.SLOT;
        while (b.hasRemaining()) {
            file.write(b, at + b.position());
        }
        file.force(false);
    }
}
