package io.towa.graph;

import io.towa.agent.FieldIds;
import jdk.internal.misc.Unsafe;

/**
 * Stub for tests of weaver and barriers: counts calls for durable objects, and keeps a shadow of one watched memory cell.
 *
 * <p>After every write to the watched cell the test compares memory with the shadow.
 */
public final class Stores {
    private static final Unsafe U = Unsafe.getUnsafe();
    public static long pres, writes, locks, unlocks, statics, preStatics;
    public static String lastField;
    public static Object refuse;
    /** What the last write wrote, as a test may compare it: bits or the reference. */
    public static long calls;

    private Stores() {}

    public static void reset() {
        pres = writes = locks = unlocks = statics = preStatics = calls = 0;
        lastField = null;
    }

    public static void pre(Object o, Object v) {
        calls++;
        if (!Replicas.durable(o)) return;
        pres++;
        if (v == refuse) throw new IllegalStateException("refused");
    }

    public static void preRange(Object[] src, int from, int n, Object dst) {
        for (int i = from; i < from + n; i++) if (src[i] != null) pre(dst, src[i]);
    }

    public static void preStatic(Object v, int fieldId) { calls++; preStatics++; }
    public static void preStaticOffset(Class<?> c, long offset, Object v) { calls++; preStatics++; }
    public static void staticField(int fieldId) { calls++; statics++; lastField = FieldIds.name(fieldId); }
    public static void staticOffset(Class<?> c, long offset) { calls++; statics++; }

    public static void field(Object o, int fieldId) {
        calls++;
        if (!Replicas.durable(o)) return;
        writes++;
        lastField = FieldIds.name(fieldId);
    }

    public static void element(Object a, int i) { write(a); }
    public static void range(Object a, int from, int n) { write(a); }
    public static void offset(Object o, long offset, long bytes) { write(o); }

    private static void write(Object o) {
        calls++;
        if (Replicas.durable(o)) writes++;
    }

    public static long fieldOffset(Object o, int fieldId) {
        for (Class<?> c = o.getClass(); c != null; c = c.getSuperclass()) {
            try {
                c.getDeclaredField(FieldIds.name(fieldId));
                return U.objectFieldOffset(c, FieldIds.name(fieldId));
            } catch (NoSuchFieldException e) {
                // Further up.
            }
        }
        return -1;
    }

    public static int lock(Object o, long offset) { calls++; locks++; return -1; }
    public static void mirrorRef(Object o, long offset, Object v) { write(o); }
    public static void mirrorBits(Object o, long offset, long bits, int size) { write(o); }
    public static void unlock(int token) { unlocks++; }
}
