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
 *
 * <p>What must always hold: an update begins only when the slot that counts is on the device. After a sync that failed, or a process that was
 * killed before it synced, the slot that a reader sees may be in the page cache alone: {@link #settle} writes it again, and a {@link #write}
 * that failed is repeated in the same slot. A slot of 256 bytes lies in one sector, and a sector is written whole or not at all.
 */
public final class Superblock {
    private static final int SUM_AT = 248;
    private static final int PID_AT = 76;
    private static final int STAMP_AT = 80;
    private static final int RESERVED = 88;

    public long uuidHigh;
    public long uuidLow;
    public long seq;
    public long capacity;
    public long created;
    public boolean ready;
    /** Closed in the ordinary way: all that the pool holds is in its file, and no log is needed. */
    public boolean clean;
    public Durability durability;
    /** Process that opened the pool last, as it knows itself. */
    public int pid;
    /** Of the last opening for commits: its log bears the same. */
    public long stamp;

    /** Whether a file holds nothing, or the zeros that a creation which was stopped left before the first superblock. */
    public static boolean isUnmade(FileChannel file) throws IOException {
        long size = file.size();
        if (size > Layout.HEAP) {
            return false;
        }
        ByteBuffer all = ByteBuffer.allocate((int) size);
        while (all.hasRemaining() && file.read(all, all.position()) > 0) {
            // a part came
        }
        return zeros(all.array());
    }

    private static boolean zeros(byte[] bytes) {
        for (byte b : bytes) {
            if (b != 0) {
                return false;
            }
        }
        return true;
    }

    /** As {@link #read(Disk, String)}. */
    public static Superblock read(FileChannel file, String name) throws IOException {
        return read(new Disk.Channel(file), name);
    }

    /**
     * Reads the newer slot.
     *
     * @throws PoolException foreign, newer, or damaged: with the file's name and what to do
     */
    static Superblock read(Disk file, String name) throws IOException {
        Superblock[] slots = new Superblock[2];
        boolean[] magic = new boolean[2];
        for (int slot = 0; slot < 2; slot++) {
            ByteBuffer b = ByteBuffer.allocate(Layout.SUPERBLOCK).order(ByteOrder.LITTLE_ENDIAN);
            magic[slot] = file.read(b, (long) slot * Layout.SLOT) && magic(b);
            if (magic[slot] && b.getLong(SUM_AT) == sum(b)) {
                slots[slot] = parse(b, name);
            }
        }
        if (slots[0] == null && slots[1] == null) {
            throw magic[0] || magic[1]
                ? new PoolException(Reason.DAMAGED, name + ": both superblocks are damaged; restore the file from a copy")
                : new PoolException(Reason.FOREIGN, name + ": not a Towa pool of the Java door; give the name of one, or of a file that does not exist yet");
        }
        int newest = slots[0] == null || slots[1] != null && slots[1].seq > slots[0].seq ? 1 : 0;
        compare(slots[newest], slots[1 - newest], magic[1 - newest], newest, name);
        return slots[newest];
    }

    /** Both slots are there from when the pool is ready, one update apart; an update that was cut short leaves a slot with a wrong sum, no more. */
    private static void compare(Superblock newer, Superblock older, boolean magic, int slot, String name) {
        String wrong = null;
        if (!magic) {
            wrong = newer.ready ? "the superblock slot at " + (1 - slot) * Layout.SLOT + " is gone: something else lies there" : null;
        } else if (older != null && (older.uuidHigh != newer.uuidHigh || older.uuidLow != newer.uuidLow)) {
            wrong = "its superblock slots are of two pools";
        } else if (older != null && older.seq + 1 != newer.seq) {
            wrong = "its superblock slots have the sequence numbers " + older.seq + " and " + newer.seq + ", which are not one update apart";
        }
        if (wrong == null && (newer.seq & 1) != slot) {
            wrong = "the superblock slot at " + slot * Layout.SLOT + " has sequence number " + newer.seq + ", which belongs into the other";
        }
        if (wrong != null) {
            throw new PoolException(Reason.DAMAGED, name + ": " + wrong + "; restore the file from a copy");
        }
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
        for (int at = RESERVED; at < SUM_AT; at++) {
            if (b.get(at) != 0) {
                throw new PoolException(Reason.NEWER, name + ": a superblock with something at byte " + at + ", made by a newer version of Towa; use that version");
            }
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
        s.pid = b.getInt(PID_AT);
        s.stamp = b.getLong(STAMP_AT);
        if (b.getLong(56) != Layout.HEAP || s.capacity < Layout.HEAP || s.capacity % Layout.SEGMENT != 0 || (b.getInt(64) | b.getInt(68)) >>> 1 != 0
            || b.getInt(72) < 1 || b.getInt(72) > 2) {
            throw new PoolException(Reason.DAMAGED, name + ": the superblock names an impossible layout (heap " + b.getLong(56) + ", capacity "
                + s.capacity + ", state " + b.getInt(64) + ", clean " + b.getInt(68) + ", durability " + b.getInt(72) + ")");
        }
        return s;
    }

    /** Writes the slot that does not count yet, and syncs. If that fails the same slot is written the next time. */
    void write(Disk file) throws IOException {
        put(file, seq + 1);
        file.sync();
        seq++;
    }

    /** Writes the slot that counts once more, as it is: on the device after the next sync of the file, whatever became of the last one. */
    void settle(Disk file) throws IOException {
        put(file, seq);
    }

    private void put(Disk file, long number) throws IOException {
        ByteBuffer b = ByteBuffer.allocate(Layout.SUPERBLOCK).order(ByteOrder.LITTLE_ENDIAN);
        b.put(0, Layout.MAGIC).putInt(8, Layout.VERSION).putLong(16, uuidHigh).putLong(24, uuidLow).putLong(32, number);
        b.putLong(40, capacity).putLong(48, created).putLong(56, Layout.HEAP).putInt(64, ready ? 1 : 0).putInt(68, clean ? 1 : 0);
        b.putInt(72, durability == Durability.POWER ? 2 : 1).putInt(PID_AT, pid).putLong(STAMP_AT, stamp);
        b.putLong(SUM_AT, sum(b));
        file.write(b, (number & 1) * Layout.SLOT);
    }
}
