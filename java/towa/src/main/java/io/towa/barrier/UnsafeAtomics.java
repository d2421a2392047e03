package io.towa.barrier;

import io.towa.graph.LockedStores;
import jdk.internal.misc.Unsafe;
import jdk.internal.vm.annotation.ForceInline;

/**
 * Atomic operations of Unsafe. The flavours (Plain, Acquire, Release, weak) of one operation are all redirected to the strong one here.
 *
 * <p>Always true: while nothing is durable each method is the call itself, or the loop that Unsafe itself has for it. Afterwards an
 * operation on a white object runs inside {@link WhiteGate}; on a durable one under the object's lock, the new value in the replica before
 * it is in memory. A plain writer that races with it may spoil the exchange: then the replica gets what memory holds, and it is tried anew.
 */
public final class UnsafeAtomics {
    private UnsafeAtomics() {}

    // ---- references

    @ForceInline
    public static boolean compareAndSetReference(Unsafe u, Object o, long off, Object e, Object x) {
        return Switch.Raw.on() ? exchangeOn(u, o, off, e, x) == e : u.compareAndSetReference(o, off, e, x);
    }

    @ForceInline
    public static Object compareAndExchangeReference(Unsafe u, Object o, long off, Object e, Object x) {
        return Switch.Raw.on() ? exchangeOn(u, o, off, e, x) : u.compareAndExchangeReference(o, off, e, x);
    }

    @ForceInline
    public static Object getAndSetReference(Unsafe u, Object o, long off, Object x) {
        if (!Switch.Raw.on()) return u.getAndSetReference(o, off, x);
        Object c;
        do c = u.getReferenceVolatile(o, off); while (exchangeOn(u, o, off, c, x) != c);
        return c;
    }

    private static Object exchangeOn(Unsafe u, Object o, long off, Object e, Object x) {
        int token = Barrier.begin(o, off, x);
        try {
            return token < 0 ? locked(u, o, off, e, x) : u.compareAndExchangeReference(o, off, e, x);
        } finally {
            Barrier.end(token, o, off);
        }
    }

    private static Object locked(Unsafe u, Object o, long off, Object e, Object x) {
        while (true) {
            Object c = u.getReferenceVolatile(o, off);
            if (c != e) return c;
            LockedStores.mirrorRef(o, off, x);
            c = u.compareAndExchangeReference(o, off, e, x);
            if (c == e) return c;
            LockedStores.mirrorRef(o, off, c);
        }
    }

    // ---- int

    @ForceInline
    public static boolean compareAndSetInt(Unsafe u, Object o, long off, int e, int x) {
        return Switch.Raw.on() ? exchangeOn(u, o, off, e, x) == e : u.compareAndSetInt(o, off, e, x);
    }

    @ForceInline
    public static int compareAndExchangeInt(Unsafe u, Object o, long off, int e, int x) {
        return Switch.Raw.on() ? exchangeOn(u, o, off, e, x) : u.compareAndExchangeInt(o, off, e, x);
    }

    private static int exchangeOn(Unsafe u, Object o, long off, int e, int x) {
        int token = Barrier.begin(o, off);
        try {
            return token < 0 ? locked(u, o, off, e, x) : u.compareAndExchangeInt(o, off, e, x);
        } finally {
            Barrier.end(token);
        }
    }

    private static int locked(Unsafe u, Object o, long off, int e, int x) {
        while (true) {
            int c = u.getIntVolatile(o, off);
            if (c != e) return c;
            LockedStores.mirrorBits(o, off, x, 4);
            c = u.compareAndExchangeInt(o, off, e, x);
            if (c == e) return c;
            LockedStores.mirrorBits(o, off, c, 4);
        }
    }

    // ---- long

    @ForceInline
    public static boolean compareAndSetLong(Unsafe u, Object o, long off, long e, long x) {
        return Switch.Raw.on() ? exchangeOn(u, o, off, e, x) == e : u.compareAndSetLong(o, off, e, x);
    }

    @ForceInline
    public static long compareAndExchangeLong(Unsafe u, Object o, long off, long e, long x) {
        return Switch.Raw.on() ? exchangeOn(u, o, off, e, x) : u.compareAndExchangeLong(o, off, e, x);
    }

    private static long exchangeOn(Unsafe u, Object o, long off, long e, long x) {
        int token = Barrier.begin(o, off);
        try {
            return token < 0 ? locked(u, o, off, e, x) : u.compareAndExchangeLong(o, off, e, x);
        } finally {
            Barrier.end(token);
        }
    }

    private static long locked(Unsafe u, Object o, long off, long e, long x) {
        while (true) {
            long c = u.getLongVolatile(o, off);
            if (c != e) return c;
            LockedStores.mirrorBits(o, off, x, 8);
            c = u.compareAndExchangeLong(o, off, e, x);
            if (c == e) return c;
            LockedStores.mirrorBits(o, off, c, 8);
        }
    }

    // ---- short

    @ForceInline
    public static boolean compareAndSetShort(Unsafe u, Object o, long off, short e, short x) {
        return Switch.Raw.on() ? exchangeOn(u, o, off, e, x) == e : u.compareAndSetShort(o, off, e, x);
    }

    @ForceInline
    public static short compareAndExchangeShort(Unsafe u, Object o, long off, short e, short x) {
        return Switch.Raw.on() ? exchangeOn(u, o, off, e, x) : u.compareAndExchangeShort(o, off, e, x);
    }

    private static short exchangeOn(Unsafe u, Object o, long off, short e, short x) {
        int token = Barrier.begin(o, off);
        try {
            return token < 0 ? locked(u, o, off, e, x) : u.compareAndExchangeShort(o, off, e, x);
        } finally {
            Barrier.end(token);
        }
    }

    private static short locked(Unsafe u, Object o, long off, short e, short x) {
        while (true) {
            short c = u.getShortVolatile(o, off);
            if (c != e) return c;
            LockedStores.mirrorBits(o, off, x, 2);
            c = u.compareAndExchangeShort(o, off, e, x);
            if (c == e) return c;
            LockedStores.mirrorBits(o, off, c, 2);
        }
    }

    // ---- byte

    @ForceInline
    public static boolean compareAndSetByte(Unsafe u, Object o, long off, byte e, byte x) {
        return Switch.Raw.on() ? exchangeOn(u, o, off, e, x) == e : u.compareAndSetByte(o, off, e, x);
    }

    @ForceInline
    public static byte compareAndExchangeByte(Unsafe u, Object o, long off, byte e, byte x) {
        return Switch.Raw.on() ? exchangeOn(u, o, off, e, x) : u.compareAndExchangeByte(o, off, e, x);
    }

    private static byte exchangeOn(Unsafe u, Object o, long off, byte e, byte x) {
        int token = Barrier.begin(o, off);
        try {
            return token < 0 ? locked(u, o, off, e, x) : u.compareAndExchangeByte(o, off, e, x);
        } finally {
            Barrier.end(token);
        }
    }

    private static byte locked(Unsafe u, Object o, long off, byte e, byte x) {
        while (true) {
            byte c = u.getByteVolatile(o, off);
            if (c != e) return c;
            LockedStores.mirrorBits(o, off, x, 1);
            c = u.compareAndExchangeByte(o, off, e, x);
            if (c == e) return c;
            LockedStores.mirrorBits(o, off, c, 1);
        }
    }

    // ---- types without an exchange of their own: by their bits, as Unsafe does it

    @ForceInline
    public static boolean compareAndSetChar(Unsafe u, Object o, long off, char e, char x) {
        return compareAndSetShort(u, o, off, (short) e, (short) x);
    }

    @ForceInline
    public static char compareAndExchangeChar(Unsafe u, Object o, long off, char e, char x) {
        return (char) compareAndExchangeShort(u, o, off, (short) e, (short) x);
    }

    @ForceInline
    public static boolean compareAndSetBoolean(Unsafe u, Object o, long off, boolean e, boolean x) {
        return compareAndSetByte(u, o, off, bit(e), bit(x));
    }

    @ForceInline
    public static boolean compareAndExchangeBoolean(Unsafe u, Object o, long off, boolean e, boolean x) {
        return compareAndExchangeByte(u, o, off, bit(e), bit(x)) != 0;
    }

    @ForceInline
    public static boolean compareAndSetFloat(Unsafe u, Object o, long off, float e, float x) {
        return compareAndSetInt(u, o, off, Float.floatToRawIntBits(e), Float.floatToRawIntBits(x));
    }

    @ForceInline
    public static float compareAndExchangeFloat(Unsafe u, Object o, long off, float e, float x) {
        return Float.intBitsToFloat(compareAndExchangeInt(u, o, off, Float.floatToRawIntBits(e), Float.floatToRawIntBits(x)));
    }

    @ForceInline
    public static boolean compareAndSetDouble(Unsafe u, Object o, long off, double e, double x) {
        return compareAndSetLong(u, o, off, Double.doubleToRawLongBits(e), Double.doubleToRawLongBits(x));
    }

    @ForceInline
    public static double compareAndExchangeDouble(Unsafe u, Object o, long off, double e, double x) {
        return Double.longBitsToDouble(compareAndExchangeLong(u, o, off, Double.doubleToRawLongBits(e), Double.doubleToRawLongBits(x)));
    }

    @ForceInline
    private static byte bit(boolean v) {
        return v ? (byte) 1 : (byte) 0;
    }
}
