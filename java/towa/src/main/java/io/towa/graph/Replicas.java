package io.towa.graph;

/** Stub for tests of weaver and barriers: a short list of objects that pass for durable. */
public final class Replicas {
    static volatile Object[] all = new Object[0];

    private Replicas() {}

    public static boolean durable(Object o) {
        Object[] a = all;
        for (int i = 0; i < a.length; i++) if (a[i] == o) return true;
        return false;
    }

    public static synchronized void set(Object... objects) {
        for (int i = 0; i < objects.length; i++) System.identityHashCode(objects[i]);
        all = objects;
    }
}
