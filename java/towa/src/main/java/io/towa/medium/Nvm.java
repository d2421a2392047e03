package io.towa.medium;

import jdk.internal.misc.Unsafe;

/**
 * The pool's bytes: every store to them, every write-back and every fence goes through here.
 *
 * <pre>
 *   medium    mapping            a store is durable
 *   DAX       shared, MAP_SYNC   after writeBack of its line and a fence            (process- and power-safe)
 *   SHARED    shared             as soon as it is done: the page cache has it       (process-safe)
 *   PRIVATE   copy on write      when the committer has written its page and log    (power-safe, buffered)
 * </pre>
 *
 * What must always hold: stores reach the mapping in program order (each is a release store, and x86 keeps stores in order); an
 * aligned store of up to 8 bytes is never torn. Positions are byte offsets in the file.
 *
 * <p>One pool is open at a time, so all is static: the base address is a plain field that the JIT keeps in a register.
 */
public final class Nvm {
    /** How the file is mapped. */
    public static final int SHARED = 0;
    public static final int DAX = 1;
    public static final int PRIVATE = 2;

    private static final Unsafe U = Unsafe.getUnsafe();
    private static final long BYTES = Unsafe.ARRAY_BYTE_BASE_OFFSET;
    private static final int LINE = 64;

    private static long base;
    private static int kind;
    private static boolean writesBack;
    /** Pages that were stored to since the last commit (PRIVATE), or since a backup began ({@link #follow}); else null. */
    private static DirtyPages dirty;
    /** Listens to every store, write-back and fence (crash tests), else null. */
    private static volatile Recorder recorder;

    private Nvm() {}

    /** Hears what is done to the pool, in order, under its own lock: for crash tests. */
    public interface Recorder {
        void store(long at, long bits, int bytes);

        void writeBack(long at, long bytes);

        void fence();
    }

    public static void attach(long address, int medium, DirtyPages pages) {
        base = address;
        kind = medium;
        writesBack = medium == DAX;
        dirty = pages;
        U.fullFence();
    }

    public static void detach() {
        base = 0;
        writesBack = false;
        dirty = null;
        recorder = null;
    }

    /**
     * Marks in {@code pages} what is stored to from now on; null: no longer. The gate is shut. Not of a PRIVATE mapping, whose commits know their pages.
     *
     * <p>The field is a plain one, which stores look at anyway. A thread that enters the gate later sees what this has set, for entering is a full fence.
     */
    public static void follow(DirtyPages pages) {
        if (kind == PRIVATE) {
            throw new IllegalStateException("the commits of a private mapping have its pages");
        }
        dirty = pages;
        U.fullFence();
    }

    public static boolean attached() {
        return base != 0;
    }

    public static int medium() {
        return kind;
    }

    public static long address(long at) {
        return base + at;
    }

    public static void record(Recorder listener) {
        recorder = listener;
    }

    public static void putLong(long at, long v) {
        U.putLongRelease(null, base + at, v);
        if (dirty != null || recorder != null) {
            told(at, v, 8);
        }
    }

    public static void putInt(long at, int v) {
        U.putIntRelease(null, base + at, v);
        if (dirty != null || recorder != null) {
            told(at, v & 0xffffffffL, 4);
        }
    }

    public static void putShort(long at, short v) {
        U.putShortRelease(null, base + at, v);
        if (dirty != null || recorder != null) {
            told(at, v & 0xffffL, 2);
        }
    }

    public static void putByte(long at, byte v) {
        U.putByteRelease(null, base + at, v);
        if (dirty != null || recorder != null) {
            told(at, v & 0xffL, 1);
        }
    }

    /** The low {@code bytes} (1, 2, 4 or 8) of {@code bits}. */
    public static void putBits(long at, long bits, int bytes) {
        switch (bytes) {
            case 1:
                putByte(at, (byte) bits);
                break;
            case 2:
                putShort(at, (short) bits);
                break;
            case 4:
                putInt(at, (int) bits);
                break;
            default:
                putLong(at, bits);
        }
    }

    public static long getLong(long at) {
        return U.getLong(base + at);
    }

    public static int getInt(long at) {
        return U.getInt(base + at);
    }

    public static short getShort(long at) {
        return U.getShort(base + at);
    }

    public static byte getByte(long at) {
        return U.getByte(base + at);
    }

    public static long getBits(long at, int bytes) {
        switch (bytes) {
            case 1:
                return getByte(at) & 0xffL;
            case 2:
                return getShort(at) & 0xffffL;
            case 4:
                return getInt(at) & 0xffffffffL;
            default:
                return getLong(at);
        }
    }

    /** For marks of recovery alone, which nobody else writes meanwhile. */
    public static boolean compareAndSetLong(long at, long expected, long v) {
        boolean done = U.compareAndSetLong(null, base + at, expected, v);
        if (done && (dirty != null || recorder != null)) {
            told(at, v, 8);
        }
        return done;
    }

    /** Copies {@code bytes} bytes of a primitive array, from byte {@code from} of its elements on, to a position that is a multiple of 8. */
    public static void copyIn(Object array, long elements, long from, long at, long bytes) {
        U.copyMemory(array, elements + from, null, base + at, bytes);
        if (dirty != null) {
            dirty.mark(at, bytes);
        }
        if (recorder != null) {
            long done = 0;
            for (; done + 8 <= bytes; done += 8) {
                recorder.store(at + done, U.getLongUnaligned(array, elements + from + done), 8);
            }
            for (; done < bytes; done++) {
                recorder.store(at + done, U.getByte(array, elements + from + done) & 0xff, 1);
            }
        }
    }

    public static void copyOut(long at, Object array, long elements, long bytes) {
        U.copyMemory(null, base + at, array, elements, bytes);
    }

    /** Whether the bytes at {@code at} are those of the array: the verification of a copy. */
    public static boolean equal(Object array, long elements, long from, long at, long bytes) {
        long done = 0;
        for (; done + 8 <= bytes; done += 8) {
            if (U.getLongUnaligned(array, elements + from + done) != U.getLong(base + at + done)) {
                return false;
            }
        }
        for (; done < bytes; done++) {
            if (U.getByte(array, elements + from + done) != U.getByte(base + at + done)) {
                return false;
            }
        }
        return true;
    }

    public static void putBytes(long at, byte[] bytes) {
        copyIn(bytes, BYTES, 0, at, bytes.length);
    }

    public static byte[] getBytes(long at, int length) {
        byte[] bytes = new byte[length];
        copyOut(at, bytes, BYTES, length);
        return bytes;
    }

    /** Begins to write back the lines of these bytes: durable after the next {@link #fence}. */
    public static void writeBack(long at, long bytes) {
        if (recorder != null) {
            recorder.writeBack(at, bytes);
        }
        if (writesBack) {
            long from = (base + at) & -LINE;
            U.writebackMemory(from, base + at + bytes - from);
        }
    }

    /** What was written back before is durable after it, and before all that follows. */
    public static void fence() {
        if (recorder != null) {
            recorder.fence();
        }
        U.storeFence();
    }

    /** One word, durable when it returns. */
    public static void putLongDurably(long at, long v) {
        putLong(at, v);
        writeBack(at, 8);
        fence();
    }

    private static void told(long at, long bits, int bytes) {
        DirtyPages pages = dirty;
        if (pages != null) {
            pages.mark(at, bytes);
        }
        Recorder r = recorder;
        if (r != null) {
            r.store(at, bits, bytes);
        }
    }
}
