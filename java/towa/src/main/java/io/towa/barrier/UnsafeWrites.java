package io.towa.barrier;

import jdk.internal.misc.Unsafe;
import jdk.internal.vm.annotation.ForceInline;

/**
 * Calls of Unsafe that put, each redirected to the method of its name here (VarHandles, method handles, Field.set, byte views, memory
 * segments and serialization end in one of them).
 *
 * <p>Always true: while nothing is durable each method is the call itself. Afterwards plain, opaque and unaligned puts are a store and
 * its barrier; volatile and release puts, by which a thread publishes, put into the replica first, under the object's lock.
 */
public final class UnsafeWrites {
    private UnsafeWrites() {}

    // ---- references

    @ForceInline
    public static void putReference(Unsafe u, Object o, long off, Object x) {
        if (Switch.Raw.on()) Barrier.preReference(o, off, x);
        u.putReference(o, off, x);
        if (Switch.Raw.on()) Barrier.writtenReference(o, off);
    }

    @ForceInline
    public static void putReferenceOpaque(Unsafe u, Object o, long off, Object x) {
        if (Switch.Raw.on()) Barrier.preReference(o, off, x);
        u.putReferenceOpaque(o, off, x);
        if (Switch.Raw.on()) Barrier.writtenReference(o, off);
    }

    @ForceInline
    public static void putReferenceVolatile(Unsafe u, Object o, long off, Object x) {
        int token = Switch.Raw.on() ? Barrier.beginPut(o, off, x) : 0;
        u.putReferenceVolatile(o, off, x);
        if (Switch.Raw.on()) Barrier.end(token, o, off);
    }

    @ForceInline
    public static void putReferenceRelease(Unsafe u, Object o, long off, Object x) {
        int token = Switch.Raw.on() ? Barrier.beginPut(o, off, x) : 0;
        u.putReferenceRelease(o, off, x);
        if (Switch.Raw.on()) Barrier.end(token, o, off);
    }

    // ---- boolean

    @ForceInline
    public static void putBoolean(Unsafe u, Object o, long off, boolean x) {
        u.putBoolean(o, off, x);
        if (Switch.Raw.on()) Barrier.written(o, off, 1);
    }

    @ForceInline
    public static void putBooleanOpaque(Unsafe u, Object o, long off, boolean x) {
        u.putBooleanOpaque(o, off, x);
        if (Switch.Raw.on()) Barrier.written(o, off, 1);
    }

    @ForceInline
    public static void putBooleanVolatile(Unsafe u, Object o, long off, boolean x) {
        int token = Switch.Raw.on() ? Barrier.beginPut(o, off, x ? 1 : 0, 1) : 0;
        u.putBooleanVolatile(o, off, x);
        if (Switch.Raw.on()) Barrier.end(token);
    }

    @ForceInline
    public static void putBooleanRelease(Unsafe u, Object o, long off, boolean x) {
        int token = Switch.Raw.on() ? Barrier.beginPut(o, off, x ? 1 : 0, 1) : 0;
        u.putBooleanRelease(o, off, x);
        if (Switch.Raw.on()) Barrier.end(token);
    }

    // ---- byte

    @ForceInline
    public static void putByte(Unsafe u, Object o, long off, byte x) {
        u.putByte(o, off, x);
        if (Switch.Raw.on()) Barrier.written(o, off, 1);
    }

    @ForceInline
    public static void putByteOpaque(Unsafe u, Object o, long off, byte x) {
        u.putByteOpaque(o, off, x);
        if (Switch.Raw.on()) Barrier.written(o, off, 1);
    }

    @ForceInline
    public static void putByteVolatile(Unsafe u, Object o, long off, byte x) {
        int token = Switch.Raw.on() ? Barrier.beginPut(o, off, x, 1) : 0;
        u.putByteVolatile(o, off, x);
        if (Switch.Raw.on()) Barrier.end(token);
    }

    @ForceInline
    public static void putByteRelease(Unsafe u, Object o, long off, byte x) {
        int token = Switch.Raw.on() ? Barrier.beginPut(o, off, x, 1) : 0;
        u.putByteRelease(o, off, x);
        if (Switch.Raw.on()) Barrier.end(token);
    }

    // ---- short

    @ForceInline
    public static void putShort(Unsafe u, Object o, long off, short x) {
        u.putShort(o, off, x);
        if (Switch.Raw.on()) Barrier.written(o, off, 2);
    }

    @ForceInline
    public static void putShortOpaque(Unsafe u, Object o, long off, short x) {
        u.putShortOpaque(o, off, x);
        if (Switch.Raw.on()) Barrier.written(o, off, 2);
    }

    @ForceInline
    public static void putShortVolatile(Unsafe u, Object o, long off, short x) {
        int token = Switch.Raw.on() ? Barrier.beginPut(o, off, x, 2) : 0;
        u.putShortVolatile(o, off, x);
        if (Switch.Raw.on()) Barrier.end(token);
    }

    @ForceInline
    public static void putShortRelease(Unsafe u, Object o, long off, short x) {
        int token = Switch.Raw.on() ? Barrier.beginPut(o, off, x, 2) : 0;
        u.putShortRelease(o, off, x);
        if (Switch.Raw.on()) Barrier.end(token);
    }

    // ---- char

    @ForceInline
    public static void putChar(Unsafe u, Object o, long off, char x) {
        u.putChar(o, off, x);
        if (Switch.Raw.on()) Barrier.written(o, off, 2);
    }

    @ForceInline
    public static void putCharOpaque(Unsafe u, Object o, long off, char x) {
        u.putCharOpaque(o, off, x);
        if (Switch.Raw.on()) Barrier.written(o, off, 2);
    }

    @ForceInline
    public static void putCharVolatile(Unsafe u, Object o, long off, char x) {
        int token = Switch.Raw.on() ? Barrier.beginPut(o, off, x, 2) : 0;
        u.putCharVolatile(o, off, x);
        if (Switch.Raw.on()) Barrier.end(token);
    }

    @ForceInline
    public static void putCharRelease(Unsafe u, Object o, long off, char x) {
        int token = Switch.Raw.on() ? Barrier.beginPut(o, off, x, 2) : 0;
        u.putCharRelease(o, off, x);
        if (Switch.Raw.on()) Barrier.end(token);
    }

    // ---- int

    @ForceInline
    public static void putInt(Unsafe u, Object o, long off, int x) {
        u.putInt(o, off, x);
        if (Switch.Raw.on()) Barrier.written(o, off, 4);
    }

    @ForceInline
    public static void putIntOpaque(Unsafe u, Object o, long off, int x) {
        u.putIntOpaque(o, off, x);
        if (Switch.Raw.on()) Barrier.written(o, off, 4);
    }

    @ForceInline
    public static void putIntVolatile(Unsafe u, Object o, long off, int x) {
        int token = Switch.Raw.on() ? Barrier.beginPut(o, off, x, 4) : 0;
        u.putIntVolatile(o, off, x);
        if (Switch.Raw.on()) Barrier.end(token);
    }

    @ForceInline
    public static void putIntRelease(Unsafe u, Object o, long off, int x) {
        int token = Switch.Raw.on() ? Barrier.beginPut(o, off, x, 4) : 0;
        u.putIntRelease(o, off, x);
        if (Switch.Raw.on()) Barrier.end(token);
    }

    // ---- long

    @ForceInline
    public static void putLong(Unsafe u, Object o, long off, long x) {
        u.putLong(o, off, x);
        if (Switch.Raw.on()) Barrier.written(o, off, 8);
    }

    @ForceInline
    public static void putLongOpaque(Unsafe u, Object o, long off, long x) {
        u.putLongOpaque(o, off, x);
        if (Switch.Raw.on()) Barrier.written(o, off, 8);
    }

    @ForceInline
    public static void putLongVolatile(Unsafe u, Object o, long off, long x) {
        int token = Switch.Raw.on() ? Barrier.beginPut(o, off, x, 8) : 0;
        u.putLongVolatile(o, off, x);
        if (Switch.Raw.on()) Barrier.end(token);
    }

    @ForceInline
    public static void putLongRelease(Unsafe u, Object o, long off, long x) {
        int token = Switch.Raw.on() ? Barrier.beginPut(o, off, x, 8) : 0;
        u.putLongRelease(o, off, x);
        if (Switch.Raw.on()) Barrier.end(token);
    }

    // ---- float

    @ForceInline
    public static void putFloat(Unsafe u, Object o, long off, float x) {
        u.putFloat(o, off, x);
        if (Switch.Raw.on()) Barrier.written(o, off, 4);
    }

    @ForceInline
    public static void putFloatOpaque(Unsafe u, Object o, long off, float x) {
        u.putFloatOpaque(o, off, x);
        if (Switch.Raw.on()) Barrier.written(o, off, 4);
    }

    @ForceInline
    public static void putFloatVolatile(Unsafe u, Object o, long off, float x) {
        int token = Switch.Raw.on() ? Barrier.beginPut(o, off, Float.floatToRawIntBits(x), 4) : 0;
        u.putFloatVolatile(o, off, x);
        if (Switch.Raw.on()) Barrier.end(token);
    }

    @ForceInline
    public static void putFloatRelease(Unsafe u, Object o, long off, float x) {
        int token = Switch.Raw.on() ? Barrier.beginPut(o, off, Float.floatToRawIntBits(x), 4) : 0;
        u.putFloatRelease(o, off, x);
        if (Switch.Raw.on()) Barrier.end(token);
    }

    // ---- double

    @ForceInline
    public static void putDouble(Unsafe u, Object o, long off, double x) {
        u.putDouble(o, off, x);
        if (Switch.Raw.on()) Barrier.written(o, off, 8);
    }

    @ForceInline
    public static void putDoubleOpaque(Unsafe u, Object o, long off, double x) {
        u.putDoubleOpaque(o, off, x);
        if (Switch.Raw.on()) Barrier.written(o, off, 8);
    }

    @ForceInline
    public static void putDoubleVolatile(Unsafe u, Object o, long off, double x) {
        int token = Switch.Raw.on() ? Barrier.beginPut(o, off, Double.doubleToRawLongBits(x), 8) : 0;
        u.putDoubleVolatile(o, off, x);
        if (Switch.Raw.on()) Barrier.end(token);
    }

    @ForceInline
    public static void putDoubleRelease(Unsafe u, Object o, long off, double x) {
        int token = Switch.Raw.on() ? Barrier.beginPut(o, off, Double.doubleToRawLongBits(x), 8) : 0;
        u.putDoubleRelease(o, off, x);
        if (Switch.Raw.on()) Barrier.end(token);
    }

    // ---- unaligned, addresses, memory

    @ForceInline
    public static void putLongUnaligned(Unsafe u, Object o, long off, long x) {
        u.putLongUnaligned(o, off, x);
        if (Switch.Raw.on()) Barrier.written(o, off, 8);
    }

    @ForceInline
    public static void putLongUnaligned(Unsafe u, Object o, long off, long x, boolean bigEndian) {
        u.putLongUnaligned(o, off, x, bigEndian);
        if (Switch.Raw.on()) Barrier.written(o, off, 8);
    }

    @ForceInline
    public static void putIntUnaligned(Unsafe u, Object o, long off, int x) {
        u.putIntUnaligned(o, off, x);
        if (Switch.Raw.on()) Barrier.written(o, off, 4);
    }

    @ForceInline
    public static void putIntUnaligned(Unsafe u, Object o, long off, int x, boolean bigEndian) {
        u.putIntUnaligned(o, off, x, bigEndian);
        if (Switch.Raw.on()) Barrier.written(o, off, 4);
    }

    @ForceInline
    public static void putShortUnaligned(Unsafe u, Object o, long off, short x) {
        u.putShortUnaligned(o, off, x);
        if (Switch.Raw.on()) Barrier.written(o, off, 2);
    }

    @ForceInline
    public static void putShortUnaligned(Unsafe u, Object o, long off, short x, boolean bigEndian) {
        u.putShortUnaligned(o, off, x, bigEndian);
        if (Switch.Raw.on()) Barrier.written(o, off, 2);
    }

    @ForceInline
    public static void putCharUnaligned(Unsafe u, Object o, long off, char x) {
        u.putCharUnaligned(o, off, x);
        if (Switch.Raw.on()) Barrier.written(o, off, 2);
    }

    @ForceInline
    public static void putCharUnaligned(Unsafe u, Object o, long off, char x, boolean bigEndian) {
        u.putCharUnaligned(o, off, x, bigEndian);
        if (Switch.Raw.on()) Barrier.written(o, off, 2);
    }

    @ForceInline
    public static void putAddress(Unsafe u, Object o, long off, long x) {
        u.putAddress(o, off, x);
        if (Switch.Raw.on()) Barrier.written(o, off, Unsafe.ADDRESS_SIZE);
    }

    @ForceInline
    public static void setMemory(Unsafe u, Object o, long off, long bytes, byte value) {
        u.setMemory(o, off, bytes, value);
        if (Switch.Raw.on()) Barrier.written(o, off, bytes);
    }

    @ForceInline
    public static void copyMemory(Unsafe u, Object from, long fromOff, Object to, long toOff, long bytes) {
        u.copyMemory(from, fromOff, to, toOff, bytes);
        if (Switch.Raw.on()) Barrier.written(to, toOff, bytes);
    }

    @ForceInline
    public static void copySwapMemory(Unsafe u, Object from, long fromOff, Object to, long toOff, long bytes, long unit) {
        u.copySwapMemory(from, fromOff, to, toOff, bytes, unit);
        if (Switch.Raw.on()) Barrier.written(to, toOff, bytes);
    }
}
