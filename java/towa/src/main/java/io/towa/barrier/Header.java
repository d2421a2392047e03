package io.towa.barrier;

import jdk.internal.misc.Unsafe;
import jdk.internal.vm.annotation.ForceInline;

/**
 * The object's header as a filter: "may this object be durable?"
 *
 * <p>Always true: an object with a replica has an identity hash (the promoter asks for it before it marks), and the identity hash of
 * an object shows in its header word. So {@link #marked} never says no of a durable object; it may say yes of another one (hash taken
 * by somebody else, or a monitor's address in the header).
 */
public final class Header {
    static final Unsafe U = Unsafe.getUnsafe();
    /** 31 bits at shift 11: the same for ordinary and compact object headers of JDK 25. */
    static final int SHIFT = 11;
    static final long MASK = 0x7fffffffL << SHIFT;
    /** How it is locked; what that is for nobody's lock. */
    private static final long LOCK = 3;
    private static final long UNLOCKED = 1;

    private Header() {}

    /** May {@code o}, not null, be durable? */
    @ForceInline
    public static boolean marked(Object o) {
        return (U.getLong(o, 0L) & MASK) != 0;
    }

    /** As {@link #marked}, looked up after all stores before it in program order: no compiler moves one behind it. */
    @ForceInline
    public static boolean markedByNow(Object o) {
        U.storeFence();
        return (U.getLong(o, 0L) & MASK) != 0;
    }

    /**
     * Gives {@code o} this identity hash, and so the mark.
     *
     * @return false, and nothing has happened, if it has one, or a lock in use lets nobody see whether it has, or another thread was first
     */
    public static boolean give(Object o, int hash) {
        long header = U.getLong(o, 0L);
        return (header & (LOCK | MASK)) == UNLOCKED && U.compareAndSetLong(o, 0L, header, header | (long) hash << SHIFT);
    }

    /** Gives {@code o} its saved identity hash, if it has none yet, also while it is locked. */
    public static void restore(Object o, int hash) {
        for (long header = U.getLong(o, 0L); (header & MASK) == 0; header = U.getLong(o, 0L)) {
            if (U.compareAndSetLong(o, 0L, header, header | (long) hash << SHIFT)) return;
        }
    }

    /** As {@link #restore}, for an object that nobody else has seen: a collection in between changes but its age, which does not matter. */
    public static void set(Object o, int hash) {
        U.putLong(o, 0L, U.getLong(o, 0L) & ~MASK | (long) hash << SHIFT);
    }

    /** null if the header of this virtual machine is what {@link #marked} takes it for, otherwise what is wrong. */
    public static String selfTest() {
        if (Unsafe.ADDRESS_SIZE != 8) return "not a 64-bit virtual machine";
        for (int k = 0; k < 64; k++) {
            Object o = (k & 1) == 0 ? new Object() : new byte[k];
            if (marked(o)) return "a new object has hash bits in its header";
            String bad = hashed(o);
            if (bad != null) return bad;
            synchronized (o) {
                if (!marked(o)) return "a locked object shows no hash";
            }
        }
        Object inflated = new Object();
        if (!give(inflated, 0x2a5a5a5a) || System.identityHashCode(inflated) != 0x2a5a5a5a) return "an object does not keep the identity hash that it is given";
        synchronized (inflated) {
            try {
                inflated.wait(1);
            } catch (InterruptedException e) {
                Thread.currentThread().interrupt();
            }
            if (!marked(inflated)) return "an object with an inflated lock shows no hash";
        }
        if (give(inflated, 1) || System.identityHashCode(inflated) != 0x2a5a5a5a) return "an object that has an identity hash does not keep it";
        return marked(inflated) ? null : "an object whose lock was inflated shows no hash";
    }

    private static String hashed(Object o) {
        int hash = System.identityHashCode(o);
        if (!marked(o)) return "the identity hash does not show in the header";
        if ((int) ((U.getLong(o, 0L) & MASK) >>> SHIFT) != hash) return "the header holds the identity hash in another place";
        return null;
    }
}
