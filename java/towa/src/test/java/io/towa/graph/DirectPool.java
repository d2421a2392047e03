package io.towa.graph;

import io.towa.Durability;
import io.towa.TowaOptions;
import java.lang.reflect.Field;
import java.nio.file.Path;
import jdk.internal.misc.Unsafe;

/**
 * A pool without the agent: a store to a durable object is done by {@link #set}, which does what woven code does.
 *
 * <p>Its one root is {@link #root}.
 */
final class DirectPool {
    static final Unsafe U = Unsafe.getUnsafe();

    /** The durable root. */
    static Object root;
    static Object second;

    private static Roots.Root record;

    private DirectPool() {}

    static void open(Path file, long capacity, Durability durability) {
        open(file, TowaOptions.DEFAULT.withCapacity(capacity).withDurability(durability));
    }

    static void open(Path file, TowaOptions options) {
        DurableGraph.open(file, options, false);
        record = addRoot("root");
    }

    static Roots.Root addRoot(String field) {
        try {
            return Roots.add(DirectPool.class, DirectPool.class.getDeclaredField(field), true);
        } catch (NoSuchFieldException e) {
            throw new AssertionError(e);
        }
    }

    static void setRoot(Object v) {
        root = v;
        Roots.mirror(record);
    }

    static void close() {
        root = null;
        second = null;
        DurableGraph.close();
    }

    static long offset(Object o, String field) {
        for (Class<?> c = o.getClass(); c != null; c = c.getSuperclass()) {
            try {
                return U.objectFieldOffset(c.getDeclaredField(field));
            } catch (NoSuchFieldException e) {
                // further up
            }
        }
        throw new AssertionError(field);
    }

    /** {@code o.field = v} with its barriers. */
    static void set(Object o, long offset, Object v) {
        Stores.pre(o, v);
        U.putReference(o, offset, v);
        U.storeFence();
        Stores.offset(o, offset, Unsafe.ARRAY_OBJECT_INDEX_SCALE);
    }

    static void set(Object o, String field, Object v) {
        set(o, offset(o, field), v);
    }

    static void set(Object o, String field, long v) {
        U.putLong(o, offset(o, field), v);
        U.storeFence();
        Stores.offset(o, offset(o, field), 8);
    }

    static void set(Object o, String field, int v) {
        U.putInt(o, offset(o, field), v);
        U.storeFence();
        Stores.offset(o, offset(o, field), 4);
    }

    /** As {@link #set(Object, String, long)}, for a volatile field. */
    static void setVolatile(Object o, String field, long v) {
        long offset = offset(o, field);
        int token = LockedStores.lock(o, offset);
        LockedStores.mirrorBits(o, offset, v, 8);
        U.putLongVolatile(o, offset, v);
        LockedStores.unlock(token);
    }

    static void set(Object[] a, int i, Object v) {
        Stores.pre(a, v);
        a[i] = v;
        U.storeFence();
        Stores.element(a, i);
    }

    static void set(byte[] a, int i, byte v) {
        a[i] = v;
        U.storeFence();
        Stores.element(a, i);
    }

    static Field field(Class<?> c, String name) {
        try {
            return c.getDeclaredField(name);
        } catch (NoSuchFieldException e) {
            throw new AssertionError(e);
        }
    }
}
