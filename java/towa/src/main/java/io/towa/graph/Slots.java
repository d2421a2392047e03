package io.towa.graph;

import jdk.internal.misc.Unsafe;

/** Values of fields and elements as the low bits of a long. */
final class Slots {
    private static final Unsafe U = Unsafe.getUnsafe();

    private Slots() {}

    /** The value of a primitive field or element in DRAM. */
    static long bits(Object o, long offset, char type) {
        return raw(o, offset, ClassInfo.bytes(type));
    }

    /** What {@code bytes} (1, 2, 4 or 8) bytes of DRAM hold. */
    static long raw(Object o, long offset, int bytes) {
        switch (bytes) {
            case 1:
                return U.getByteOpaque(o, offset) & 0xffL;
            case 2:
                return U.getShortOpaque(o, offset) & 0xffffL;
            case 4:
                return U.getIntOpaque(o, offset) & 0xffffffffL;
            default:
                return U.getLongOpaque(o, offset);
        }
    }

    static void set(Object o, long offset, char type, long bits) {
        switch (ClassInfo.bytes(type)) {
            case 1:
                U.putByte(o, offset, (byte) bits);
                break;
            case 2:
                U.putShort(o, offset, (short) bits);
                break;
            case 4:
                U.putInt(o, offset, (int) bits);
                break;
            default:
                U.putLong(o, offset, bits);
        }
    }
}
