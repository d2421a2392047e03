package io.towa.agent;

/** What the weaver knows of a class, for those who ask what its instances are made of. Asking loads no part of the weaver itself. */
public final class Woven {
    private Woven() {}

    /**
     * True if stores to instances of the class may go unseen: weaving failed, it is one of those never woven, or it was not offered to the
     * weaver. Such instances must not become durable.
     */
    public static boolean isUnwoven(Class<?> c) {
        if (c.isArray() || c.isPrimitive() || c == Object.class || c.isInterface()) return false;
        return Agent.isUnwoven(c);
    }

    /** What an exception adds to that, such as the cause; empty if there is none. */
    public static String whyUnwoven(Class<?> c) {
        String name = c.getName().replace('.', '/');
        Agent.Failure[] all = Agent.failures();
        for (int i = 0; i < all.length; i++) {
            if (all[i].className.equals(name)) return " (" + all[i].cause + ")";
        }
        String skipped = Skip.reason(name);
        return skipped == null ? "" : " (" + skipped + ")";
    }

    /** Of a class of the JDK: is it in one of the packages whose classes are data? Stores to fields of all others have no barrier. */
    public static boolean mayHoldData(Class<?> c) {
        return Skip.mayHoldData(c.getName().replace('.', '/'));
    }

    /** Of a class of the JDK: is that field of it left out of replicas? */
    public static boolean leftOut(Class<?> c, String field) {
        return Skip.leftOut(c.getName().replace('.', '/'), field);
    }
}
