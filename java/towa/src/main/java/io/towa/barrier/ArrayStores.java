package io.towa.barrier;

import jdk.internal.vm.annotation.ForceInline;
import jdk.internal.vm.annotation.Hidden;

/**
 * Array store instructions, each replaced by a call of the method of its name.
 *
 * <p>Always true: the store itself behaves as the instruction (the same exceptions, sub-int values cut as the instruction cuts them),
 * and the frames show in no stack trace.
 */
public final class ArrayStores {
    private ArrayStores() {}

    /** The instruction serves byte[] and boolean[] alike. */
    @ForceInline @Hidden
    public static void bastore(Object a, int i, int v) {
        if (a instanceof boolean[]) ((boolean[]) a)[i] = (v & 1) != 0;
        else ((byte[]) a)[i] = (byte) v;
        if (Switch.B.on()) Barrier.element(a, i);
    }

    @ForceInline @Hidden
    public static void castore(char[] a, int i, int v) {
        a[i] = (char) v;
        if (Switch.C.on()) Barrier.element(a, i);
    }

    @ForceInline @Hidden
    public static void sastore(short[] a, int i, int v) {
        a[i] = (short) v;
        if (Switch.S.on()) Barrier.element(a, i);
    }

    @ForceInline @Hidden
    public static void iastore(int[] a, int i, int v) {
        a[i] = v;
        if (Switch.I.on()) Barrier.element(a, i);
    }

    @ForceInline @Hidden
    public static void lastore(long[] a, int i, long v) {
        a[i] = v;
        if (Switch.J.on()) Barrier.element(a, i);
    }

    @ForceInline @Hidden
    public static void fastore(float[] a, int i, float v) {
        a[i] = v;
        if (Switch.F.on()) Barrier.element(a, i);
    }

    @ForceInline @Hidden
    public static void dastore(double[] a, int i, double v) {
        a[i] = v;
        if (Switch.D.on()) Barrier.element(a, i);
    }

    @ForceInline @Hidden
    public static void aastore(Object[] a, int i, Object v) {
        if (Switch.L.on()) Barrier.pre(a, v);
        a[i] = v;
        if (Switch.L.on()) Barrier.element(a, i);
    }
}
