package io.towa.barrier;

import io.towa.agent.FieldIds;
import io.towa.graph.LockedStores;
import io.towa.graph.Replicas;
import io.towa.graph.Stores;
import jdk.internal.misc.Unsafe;
import jdk.internal.vm.annotation.ForceInline;
import jdk.internal.vm.annotation.ReservedStackAccess;

/**
 * What woven code reaches once its class group or switch is on: looks at the header, and only for marked objects calls {@link Stores}.
 *
 * <p>Always true: a plain store is followed by its barrier, with a compiler fence between, so the look at the mark comes after the store
 * (the promoter issues the other half, a membarrier, after marking and before copying). A volatile store or an atomic operation on a
 * durable object happens under that object's lock, replica first; on a white one inside {@link WhiteGate}.
 *
 * <p>Where the stack ends: in compiled code the touch of a callee's stack comes before its frame, so who is annotated for the reserved part is the caller, these methods,
 * and with them what they are inlined into. What returns a token is not: the error comes late, when such a method returns, and nobody would have the token.
 *
 * <p>Tokens of begin/before: 0 nothing to end, greater than 0 one of WhiteGate, less than 0 one of {@link LockedStores#lock}.
 */
public final class Barrier {
    private Barrier() {}

    /** Before an array's element becomes v. */
    @ForceInline
    public static void pre(Object array, Object v) {
        if (v != null && array != null && Header.marked(array)) Stores.pre(array, v);
    }

    @ForceInline @ReservedStackAccess
    public static void element(Object array, int i) {
        if (Header.markedByNow(array)) Stores.element(array, i);
    }

    @ForceInline @ReservedStackAccess
    public static void range(Object array, int from, int n) {
        if (n > 0 && Header.markedByNow(array)) Stores.range(array, from, n);
    }

    /** After a plain put of a primitive, or of many bytes, through Unsafe. */
    @ForceInline @ReservedStackAccess
    public static void written(Object o, long offset, long bytes) {
        if (o != null && Header.markedByNow(o)) Stores.offset(o, offset, bytes);
    }

    /** Before a put of a reference through Unsafe; static fields live in their class' mirror. */
    @ForceInline
    public static void preReference(Object o, long offset, Object v) {
        if (o instanceof Class) Stores.preStaticOffset((Class<?>) o, offset, v);
        else if (v != null && o != null && Header.marked(o)) Stores.preOffset(o, offset, v);
    }

    @ForceInline @ReservedStackAccess
    public static void writtenReference(Object o, long offset) {
        if (o instanceof Class) Stores.staticOffset((Class<?>) o, offset);
        else written(o, offset, Unsafe.ARRAY_OBJECT_INDEX_SCALE);
    }

    // ---- volatile and atomic, through Unsafe

    /** Before an atomic write of a primitive. */
    static int begin(Object o, long offset) {
        if (o == null) return 0;
        int token = enterIfWhite(o);
        return token > 0 ? token : LockedStores.lock(o, offset);
    }

    /** Before an atomic write of a reference: its value becomes durable before the lock is taken, never under it. */
    static int begin(Object o, long offset, Object v) {
        if (o == null) return 0;
        if (o instanceof Class) {
            Stores.preStaticOffset((Class<?>) o, offset, v);
            return 0;
        }
        int token = enterIfWhite(o);
        return token > 0 ? token : LockedStores.lock(o, offset, v);
    }

    /** Before a put of a primitive that publishes: the replica has it first. */
    static int beginPut(Object o, long offset, long bits, int size) {
        int token = begin(o, offset);
        if (token < 0) mirror(token, o, offset, bits, size);
        return token;
    }

    static int beginPut(Object o, long offset, Object v) {
        int token = begin(o, offset, v);
        if (token < 0) mirror(token, o, offset, v);
        return token;
    }

    private static void mirror(int token, Object o, long offset, long bits, int size) {
        try {
            LockedStores.mirrorBits(o, offset, bits, size);
        } catch (Throwable e) {
            LockedStores.unlock(token);
            throw e;
        }
    }

    private static void mirror(int token, Object o, long offset, Object v) {
        try {
            LockedStores.mirrorRef(o, offset, v);
        } catch (Throwable e) {
            LockedStores.unlock(token);
            throw e;
        }
    }

    @ReservedStackAccess
    static void end(int token) {
        if (token > 0) WhiteGate.exit(token);
        else if (token < 0) LockedStores.unlock(token);
    }

    /** As {@link #end(int)}, after a write of a reference. */
    @ReservedStackAccess
    static void end(int token, Object o, long offset) {
        if (token == 0 && o instanceof Class) Stores.staticOffset((Class<?>) o, offset);
        else end(token);
    }

    // ---- volatile fields; o is null if the store is about to throw

    public static int before(Object o, Object v, int fieldId) {
        int token = gate(o);
        if (token >= 0) return token;
        long offset = LockedStores.fieldOffset(o, fieldId);
        // The value becomes durable in the same passage of the gate as it is linked: between two, the collector might free it.
        token = LockedStores.lock(o, offset, v);
        mirror(token, o, offset, v);
        return token;
    }

    public static int before(Object o, int v, int fieldId) {
        return before(o, (long) v, fieldId);
    }

    public static int before(Object o, float v, int fieldId) {
        return before(o, (long) Float.floatToRawIntBits(v), fieldId);
    }

    public static int before(Object o, double v, int fieldId) {
        return before(o, Double.doubleToRawLongBits(v), fieldId);
    }

    public static int before(Object o, long bits, int fieldId) {
        int token = gate(o);
        if (token >= 0) return token;
        long offset = LockedStores.fieldOffset(o, fieldId);
        token = LockedStores.lock(o, offset);
        mirror(token, o, offset, bits, FieldIds.size(fieldId));
        return token;
    }

    /** In the white gate if {@code o} is white, greater than 0; 0 and outside if it is not. */
    private static int enterIfWhite(Object o) {
        int token = WhiteGate.enter();
        boolean white = false;
        try {
            white = !Header.marked(o) || !Replicas.durable(o);
        } finally {
            // Also where the stack ends.
            if (!white) WhiteGate.exit(token);
        }
        return white ? token : 0;
    }

    /** Enters the gate for a white object; -1 for a durable one. */
    private static int gate(Object o) {
        if (o == null) return 0;
        int token = enterIfWhite(o);
        return token > 0 ? token : -1;
    }

    /** Token 0: the group was turned on between before and the store; then it is as a plain store. */
    @ReservedStackAccess
    public static void after(Object o, int token, int fieldId) {
        if (token != 0) end(token);
        else if (Header.markedByNow(o)) Stores.field(o, fieldId);
    }
}
