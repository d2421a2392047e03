package io.towa.barrier;

import jdk.internal.misc.Unsafe;
import jdk.internal.vm.annotation.ForceInline;

/**
 * Read-modify-write operations of Unsafe on numbers: getAndSet, getAndAdd, getAndBitwise. All flavours are redirected to the strong one.
 *
 * <p>Always true: int and long use the one-instruction form while nothing is durable; everything else is a loop around
 * {@link UnsafeAtomics}' exchange, as it is in Unsafe, and so follows its rules.
 */
public final class UnsafeGetAnd {
    private UnsafeGetAnd() {}

    @ForceInline
    public static int getAndAddInt(Unsafe u, Object o, long off, int x) {
        if (!Switch.Raw.on()) return u.getAndAddInt(o, off, x);
        int c;
        do c = u.getIntVolatile(o, off); while (!UnsafeAtomics.compareAndSetInt(u, o, off, c, c + x));
        return c;
    }

    @ForceInline
    public static int getAndSetInt(Unsafe u, Object o, long off, int x) {
        if (!Switch.Raw.on()) return u.getAndSetInt(o, off, x);
        int c;
        do c = u.getIntVolatile(o, off); while (!UnsafeAtomics.compareAndSetInt(u, o, off, c, x));
        return c;
    }

    @ForceInline
    public static long getAndAddLong(Unsafe u, Object o, long off, long x) {
        if (!Switch.Raw.on()) return u.getAndAddLong(o, off, x);
        long c;
        do c = u.getLongVolatile(o, off); while (!UnsafeAtomics.compareAndSetLong(u, o, off, c, c + x));
        return c;
    }

    @ForceInline
    public static long getAndSetLong(Unsafe u, Object o, long off, long x) {
        if (!Switch.Raw.on()) return u.getAndSetLong(o, off, x);
        long c;
        do c = u.getLongVolatile(o, off); while (!UnsafeAtomics.compareAndSetLong(u, o, off, c, x));
        return c;
    }

    @ForceInline
    public static byte getAndAddByte(Unsafe u, Object o, long off, byte x) {
        byte c;
        do c = u.getByteVolatile(o, off); while (!UnsafeAtomics.compareAndSetByte(u, o, off, c, (byte) (c + x)));
        return c;
    }

    @ForceInline
    public static byte getAndSetByte(Unsafe u, Object o, long off, byte x) {
        byte c;
        do c = u.getByteVolatile(o, off); while (!UnsafeAtomics.compareAndSetByte(u, o, off, c, x));
        return c;
    }

    @ForceInline
    public static short getAndAddShort(Unsafe u, Object o, long off, short x) {
        short c;
        do c = u.getShortVolatile(o, off); while (!UnsafeAtomics.compareAndSetShort(u, o, off, c, (short) (c + x)));
        return c;
    }

    @ForceInline
    public static short getAndSetShort(Unsafe u, Object o, long off, short x) {
        short c;
        do c = u.getShortVolatile(o, off); while (!UnsafeAtomics.compareAndSetShort(u, o, off, c, x));
        return c;
    }

    @ForceInline
    public static char getAndAddChar(Unsafe u, Object o, long off, char x) {
        char c;
        do c = u.getCharVolatile(o, off); while (!UnsafeAtomics.compareAndSetChar(u, o, off, c, (char) (c + x)));
        return c;
    }

    @ForceInline
    public static char getAndSetChar(Unsafe u, Object o, long off, char x) {
        char c;
        do c = u.getCharVolatile(o, off); while (!UnsafeAtomics.compareAndSetChar(u, o, off, c, x));
        return c;
    }

    @ForceInline
    public static boolean getAndSetBoolean(Unsafe u, Object o, long off, boolean x) {
        boolean c;
        do c = u.getBooleanVolatile(o, off); while (!UnsafeAtomics.compareAndSetBoolean(u, o, off, c, x));
        return c;
    }

    @ForceInline
    public static float getAndAddFloat(Unsafe u, Object o, long off, float x) {
        while (true) {
            int c = u.getIntVolatile(o, off);
            float v = Float.intBitsToFloat(c);
            if (UnsafeAtomics.compareAndSetInt(u, o, off, c, Float.floatToRawIntBits(v + x))) return v;
        }
    }

    @ForceInline
    public static float getAndSetFloat(Unsafe u, Object o, long off, float x) {
        while (true) {
            int c = u.getIntVolatile(o, off);
            float v = Float.intBitsToFloat(c);
            if (UnsafeAtomics.compareAndSetInt(u, o, off, c, Float.floatToRawIntBits(x))) return v;
        }
    }

    @ForceInline
    public static double getAndAddDouble(Unsafe u, Object o, long off, double x) {
        while (true) {
            long c = u.getLongVolatile(o, off);
            double v = Double.longBitsToDouble(c);
            if (UnsafeAtomics.compareAndSetLong(u, o, off, c, Double.doubleToRawLongBits(v + x))) return v;
        }
    }

    @ForceInline
    public static double getAndSetDouble(Unsafe u, Object o, long off, double x) {
        while (true) {
            long c = u.getLongVolatile(o, off);
            double v = Double.longBitsToDouble(c);
            if (UnsafeAtomics.compareAndSetLong(u, o, off, c, Double.doubleToRawLongBits(x))) return v;
        }
    }

    @ForceInline
    public static boolean getAndBitwiseOrBoolean(Unsafe u, Object o, long off, boolean x) {
        boolean c;
        do c = u.getBooleanVolatile(o, off); while (!UnsafeAtomics.compareAndSetBoolean(u, o, off, c, c | x));
        return c;
    }

    @ForceInline
    public static byte getAndBitwiseOrByte(Unsafe u, Object o, long off, byte x) {
        byte c;
        do c = u.getByteVolatile(o, off); while (!UnsafeAtomics.compareAndSetByte(u, o, off, c, (byte) (c | x)));
        return c;
    }

    @ForceInline
    public static short getAndBitwiseOrShort(Unsafe u, Object o, long off, short x) {
        short c;
        do c = u.getShortVolatile(o, off); while (!UnsafeAtomics.compareAndSetShort(u, o, off, c, (short) (c | x)));
        return c;
    }

    @ForceInline
    public static char getAndBitwiseOrChar(Unsafe u, Object o, long off, char x) {
        char c;
        do c = u.getCharVolatile(o, off); while (!UnsafeAtomics.compareAndSetChar(u, o, off, c, (char) (c | x)));
        return c;
    }

    @ForceInline
    public static int getAndBitwiseOrInt(Unsafe u, Object o, long off, int x) {
        int c;
        do c = u.getIntVolatile(o, off); while (!UnsafeAtomics.compareAndSetInt(u, o, off, c, c | x));
        return c;
    }

    @ForceInline
    public static long getAndBitwiseOrLong(Unsafe u, Object o, long off, long x) {
        long c;
        do c = u.getLongVolatile(o, off); while (!UnsafeAtomics.compareAndSetLong(u, o, off, c, c | x));
        return c;
    }

    @ForceInline
    public static boolean getAndBitwiseAndBoolean(Unsafe u, Object o, long off, boolean x) {
        boolean c;
        do c = u.getBooleanVolatile(o, off); while (!UnsafeAtomics.compareAndSetBoolean(u, o, off, c, c & x));
        return c;
    }

    @ForceInline
    public static byte getAndBitwiseAndByte(Unsafe u, Object o, long off, byte x) {
        byte c;
        do c = u.getByteVolatile(o, off); while (!UnsafeAtomics.compareAndSetByte(u, o, off, c, (byte) (c & x)));
        return c;
    }

    @ForceInline
    public static short getAndBitwiseAndShort(Unsafe u, Object o, long off, short x) {
        short c;
        do c = u.getShortVolatile(o, off); while (!UnsafeAtomics.compareAndSetShort(u, o, off, c, (short) (c & x)));
        return c;
    }

    @ForceInline
    public static char getAndBitwiseAndChar(Unsafe u, Object o, long off, char x) {
        char c;
        do c = u.getCharVolatile(o, off); while (!UnsafeAtomics.compareAndSetChar(u, o, off, c, (char) (c & x)));
        return c;
    }

    @ForceInline
    public static int getAndBitwiseAndInt(Unsafe u, Object o, long off, int x) {
        int c;
        do c = u.getIntVolatile(o, off); while (!UnsafeAtomics.compareAndSetInt(u, o, off, c, c & x));
        return c;
    }

    @ForceInline
    public static long getAndBitwiseAndLong(Unsafe u, Object o, long off, long x) {
        long c;
        do c = u.getLongVolatile(o, off); while (!UnsafeAtomics.compareAndSetLong(u, o, off, c, c & x));
        return c;
    }

    @ForceInline
    public static boolean getAndBitwiseXorBoolean(Unsafe u, Object o, long off, boolean x) {
        boolean c;
        do c = u.getBooleanVolatile(o, off); while (!UnsafeAtomics.compareAndSetBoolean(u, o, off, c, c ^ x));
        return c;
    }

    @ForceInline
    public static byte getAndBitwiseXorByte(Unsafe u, Object o, long off, byte x) {
        byte c;
        do c = u.getByteVolatile(o, off); while (!UnsafeAtomics.compareAndSetByte(u, o, off, c, (byte) (c ^ x)));
        return c;
    }

    @ForceInline
    public static short getAndBitwiseXorShort(Unsafe u, Object o, long off, short x) {
        short c;
        do c = u.getShortVolatile(o, off); while (!UnsafeAtomics.compareAndSetShort(u, o, off, c, (short) (c ^ x)));
        return c;
    }

    @ForceInline
    public static char getAndBitwiseXorChar(Unsafe u, Object o, long off, char x) {
        char c;
        do c = u.getCharVolatile(o, off); while (!UnsafeAtomics.compareAndSetChar(u, o, off, c, (char) (c ^ x)));
        return c;
    }

    @ForceInline
    public static int getAndBitwiseXorInt(Unsafe u, Object o, long off, int x) {
        int c;
        do c = u.getIntVolatile(o, off); while (!UnsafeAtomics.compareAndSetInt(u, o, off, c, c ^ x));
        return c;
    }

    @ForceInline
    public static long getAndBitwiseXorLong(Unsafe u, Object o, long off, long x) {
        long c;
        do c = u.getLongVolatile(o, off); while (!UnsafeAtomics.compareAndSetLong(u, o, off, c, c ^ x));
        return c;
    }
}
