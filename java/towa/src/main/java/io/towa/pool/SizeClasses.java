package io.towa.pool;

/** The 40 size classes, the same as the Rust allocator's (crates/alloc/src/classes.rs): part of the format. */
public final class SizeClasses {
    public static final int COUNT = 40;
    private static final int[] SIZES = {16, 32, 48, 64, 80, 96, 112, 128, 144, 160, 176, 192, 208, 224, 240, 256, 272, 288, 304, 320, 336, 368,
        384, 400, 448, 512, 576, 640, 672, 704, 768, 816, 832, 896, 960, 1024, 1344, 1360, 2048, 4096};
    private static final byte[] CLASS_OF = new byte[Layout.SEGMENT / 16 + 1];
    /** 2^16 / size, rounded up. */
    private static final int[] RECIPROCALS = new int[COUNT];

    static {
        for (int i = 0; i < COUNT; i++) {
            RECIPROCALS[i] = ((1 << 16) + SIZES[i] - 1) / SIZES[i];
        }
        int c = 0;
        for (int units = 0; units < CLASS_OF.length; units++) {
            while (SIZES[c] < units * 16) {
                c++;
            }
            CLASS_OF[units] = (byte) c;
        }
    }

    private SizeClasses() {}

    /** The smallest class that holds {@code bytes}; -1 for large blocks, which are runs of segments. */
    public static int of(long bytes) {
        return bytes > Layout.SEGMENT ? -1 : CLASS_OF[(int) (bytes + 15 >>> 4)];
    }

    public static int bytes(int sizeClass) {
        return SIZES[sizeClass];
    }

    public static int blocks(int sizeClass) {
        return Layout.SEGMENT / SIZES[sizeClass];
    }

    /** Number of the block that begins {@code within} bytes after its segment; -1 if none begins there. */
    public static int block(int sizeClass, int within) {
        // Right for every multiple of the size, and no other number multiplied by the size is within again. A division takes four times as long.
        int block = within * RECIPROCALS[sizeClass] >>> 16;
        return block * SIZES[sizeClass] == within && within + SIZES[sizeClass] <= Layout.SEGMENT ? block : -1;
    }
}
