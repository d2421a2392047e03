package io.towa.graph;

import io.towa.pool.Layout;
import jdk.internal.misc.Unsafe;

/** Words for how an object is reached. */
final class Paths {
    private static final Unsafe U = Unsafe.getUnsafe();

    private Paths() {}

    static String simpleName(Class<?> c) {
        String name = c.getTypeName();
        return name.substring(name.lastIndexOf('.') + 1);
    }

    /** The field or element of {@code holder} that refers to {@code child}. */
    static String step(Object holder, ClassInfo info, Object child) {
        String in = simpleName(holder.getClass());
        if (info.form == Layout.FORM_ARRAY) {
            Object[] a = (Object[]) holder;
            for (int i = 0; i < a.length; i++) {
                if (a[i] == child) {
                    return in.substring(0, in.indexOf('[') + 1) + i + "]";
                }
            }
            return in;
        }
        for (int f = 0; f < info.types.length; f++) {
            if (info.types[f] == ClassInfo.REFERENCE && U.getReference(holder, info.dram[f]) == child) {
                return in + "." + info.fields[f].getName();
            }
        }
        return in;
    }
}
