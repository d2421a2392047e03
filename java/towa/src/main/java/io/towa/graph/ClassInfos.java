package io.towa.graph;

import jdk.internal.vm.annotation.DontInline;

/** The {@link ClassInfo} of each class: an open-addressed table by identity, read without a lock. Classes that were looked up stay loaded. */
final class ClassInfos {
    private static volatile ClassInfo[] table = new ClassInfo[256];
    private static int count;

    private ClassInfos() {}

    /** Not the identity hash: a class that has none yet can get the one with which it was saved. */
    private static int hash(Class<?> c) {
        return c.getName().hashCode();
    }

    static ClassInfo of(Object o) {
        return of(o.getClass());
    }

    static ClassInfo of(Class<?> c) {
        ClassInfo[] t = table;
        int mask = t.length - 1;
        for (int i = hash(c) & mask;; i = i + 1 & mask) {
            ClassInfo info = t[i];
            if (info == null) {
                return add(c);
            }
            if (info.type == c) {
                return info;
            }
        }
    }

    @DontInline
    private static ClassInfo add(Class<?> c) {
        // Stores come by here outside the gate, too.
        Gate.pin();
        try {
            // Outside the lock: it may load classes.
            ClassInfo made = new ClassInfo(c);
            made.unlearnt = Constants.learn(c);
            return add(c, made);
        } finally {
            Gate.unpin();
        }
    }

    private static ClassInfo add(Class<?> c, ClassInfo made) {
        synchronized (ClassInfos.class) {
            ClassInfo[] t = table;
            for (int i = hash(c) & t.length - 1; t[i] != null; i = i + 1 & t.length - 1) {
                if (t[i].type == c) {
                    return t[i];
                }
            }
            t = 2 * ++count > t.length ? grown(t) : t.clone();
            put(t, made);
            table = t;
            return made;
        }
    }

    private static ClassInfo[] grown(ClassInfo[] old) {
        ClassInfo[] t = new ClassInfo[2 * old.length];
        for (int i = 0; i < old.length; i++) {
            if (old[i] != null) {
                put(t, old[i]);
            }
        }
        return t;
    }

    private static void put(ClassInfo[] t, ClassInfo info) {
        int i = hash(info.type) & t.length - 1;
        while (t[i] != null) {
            i = i + 1 & t.length - 1;
        }
        t[i] = info;
    }

    /** Forgets which records the classes have, and whether they can be durable: another pool, another time. */
    static synchronized void reset() {
        table = new ClassInfo[256];
        count = 0;
    }
}
