package io.towa.barrier;

import io.towa.agent.RootFields;
import io.towa.graph.Stores;
import jdk.internal.misc.Unsafe;
import jdk.internal.vm.annotation.ForceInline;

/** Stores to static fields of reference type in application classes. Always true: only a field that may be a root costs a call. */
public final class Statics {
    private Statics() {}

    /** In the static initialiser of a class with marked roots, before it stores to one of its own fields: what it is to store. */
    @ForceInline
    public static Object initial(Object v, Class<?> c, int fieldId) {
        return Switch.Static.on() && RootFields.mayBeRoot(fieldId) ? Stores.initial(v, c, fieldId) : v;
    }

    @ForceInline
    public static void pre(Object v, int fieldId) {
        if (Switch.Static.on() && RootFields.mayBeRoot(fieldId)) Stores.preStatic(v, fieldId);
    }

    @ForceInline
    public static void post(int fieldId) {
        if (!Switch.Static.on()) return;
        Unsafe.getUnsafe().storeFence();
        if (RootFields.mayBeRoot(fieldId)) Stores.staticField(fieldId);
    }
}
