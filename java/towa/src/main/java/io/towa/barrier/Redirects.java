package io.towa.barrier;

import io.towa.TowaException;
import io.towa.agent.HiddenClasses;
import io.towa.graph.Stores;
import java.lang.reflect.Array;
import java.security.ProtectionDomain;
import jdk.internal.access.JavaLangAccess;
import jdk.internal.reflect.FieldAccessor;
import jdk.internal.vm.annotation.ForceInline;
import jdk.internal.vm.annotation.Hidden;

/**
 * Calls that write into an array of the caller without any store instruction, and the definition of hidden classes.
 *
 * <p>Always true: the operation behaves as the original (exceptions included); what it wrote before it threw is seen too.
 */
public final class Redirects {
    private Redirects() {}

    @ForceInline @Hidden
    public static void arraycopy(Object src, int from, Object dst, int to, int n) {
        if (Switch.Raw.on()) copyOn(src, from, dst, to, n);
        else System.arraycopy(src, from, dst, to, n);
    }

    @Hidden
    private static void copyOn(Object src, int from, Object dst, int to, int n) {
        boolean references = dst instanceof Object[] && src instanceof Object[];
        if (references && Header.marked(dst) && from >= 0 && n > 0 && from <= ((Object[]) src).length - n) {
            Stores.preRange((Object[]) src, from, n, dst);
        }
        try {
            System.arraycopy(src, from, dst, to, n);
        } catch (ArrayStoreException e) {
            // Elements before the refused one are written.
            if (references && to >= 0 && n > 0 && to <= ((Object[]) dst).length - n) Barrier.range(dst, to, n);
            throw e;
        }
        Barrier.range(dst, to, n);
    }

    /** After a native or an intrinsic that wrote n elements (bytes of a vector store aside) of an array; n below 1: nothing written. */
    @ForceInline
    public static void wrote(Object array, int from, int n) {
        if (Switch.Raw.on()) wroteOn(array, from, n);
    }

    /** After one that wrote somewhere in an array, if it is one. */
    @ForceInline
    public static void wrote(Object array) {
        if (Switch.Raw.on() && array != null && array.getClass().isArray()) wroteOn(array, 0, Array.getLength(array));
    }

    private static void wroteOn(Object array, int from, int n) {
        if (array == null) return;
        int length = Array.getLength(array);
        int start = Math.max(0, from);
        int end = (int) Math.min(length, (long) from + n);
        Barrier.range(array, start, end - start);
    }

    @ForceInline
    private static void element(Object array, int i) {
        if (Switch.Raw.on()) Barrier.element(array, i);
    }

    @Hidden
    public static void set(Object array, int i, Object v) {
        if (Switch.Raw.on() && array instanceof Object[]) Barrier.pre(array, v);
        Array.set(array, i, v);
        element(array, i);
    }

    @Hidden public static void setBoolean(Object a, int i, boolean v) { Array.setBoolean(a, i, v); element(a, i); }
    @Hidden public static void setByte(Object a, int i, byte v) { Array.setByte(a, i, v); element(a, i); }
    @Hidden public static void setChar(Object a, int i, char v) { Array.setChar(a, i, v); element(a, i); }
    @Hidden public static void setShort(Object a, int i, short v) { Array.setShort(a, i, v); element(a, i); }
    @Hidden public static void setInt(Object a, int i, int v) { Array.setInt(a, i, v); element(a, i); }
    @Hidden public static void setLong(Object a, int i, long v) { Array.setLong(a, i, v); element(a, i); }
    @Hidden public static void setFloat(Object a, int i, float v) { Array.setFloat(a, i, v); element(a, i); }
    @Hidden public static void setDouble(Object a, int i, double v) { Array.setDouble(a, i, v); element(a, i); }

    /** Accessors wrap what they did not expect; what Towa throws reaches the caller of Field.set as it is. */
    @Hidden
    public static void setField(FieldAccessor accessor, Object o, Object v) throws IllegalAccessException {
        try {
            accessor.set(o, v);
        } catch (InternalError e) {
            if (e.getCause() instanceof TowaException) throw (TowaException) e.getCause();
            throw e;
        }
    }

    /** Hidden classes (lambda forms among them) pass no transformer: their bytes are woven here. */
    @Hidden
    public static Class<?> defineClass(JavaLangAccess access, ClassLoader loader, Class<?> host, String name, byte[] bytes,
                                       ProtectionDomain domain, boolean initialize, int flags, Object data) {
        return access.defineClass(loader, host, name, HiddenClasses.weave(host, name, bytes), domain, initialize, flags, data);
    }
}
