package io.towa.graph;

import io.towa.PoolException;
import io.towa.agent.FieldIds;
import io.towa.medium.Nvm;
import io.towa.pool.Layout;
import io.towa.pool.UndoLog;
import jdk.internal.misc.Unsafe;
import jdk.internal.vm.annotation.DontInline;
import jdk.internal.vm.annotation.Hidden;
import jdk.internal.vm.annotation.ReservedStackAccess;

/**
 * The slow paths of barriers: a store to an object that is marked, and so perhaps durable.
 *
 * <p>Plain stores: DRAM first (the program's own instruction, or {@link #store} in its place), then the replica, written back and fenced before the barrier returns. The
 * value is read again from DRAM, not taken from the store: so when threads race, the last of them to come by here leaves what DRAM
 * has. A referent becomes durable before anything points to it. Volatile and atomic ones: {@link LockedStores}.
 *
 * <p>If the pool is full, the gate is left, the collector runs, and the operation is tried once more: each begins by looking everything up anew.
 *
 * <p>Where the stack ends: what has begun is finished on the stack that the machine keeps for such methods, and the error comes after it. A store to DRAM without
 * its mirror, or a gate that nobody leaves, would be worse than a late error. Promotion needs more than that, so it asks for its stack beforehand.
 *
 * <p>Each is one aligned store of at most 8 bytes to the pool: a crash shows the old value or the new. Source: RBP, section 4.2 (putfield).
 */
public final class Stores {
    private static final Unsafe U = Unsafe.getUnsafe();

    private Stores() {}

    /** As {@link #pre(Object, Object)}, for a field: one that is not part of replicas may refer to anything. */
    @DontInline
    public static void pre(Object o, Object v, int fieldId) {
        if (Replicas.find(o) != 0 && !Replicas.blue(v) && ClassInfos.of(o).slot(fieldId) >= 0) {
            promoteFor(o, v);
        }
    }

    /** As {@link #pre(Object, Object)}, for a field or an element by its offset in DRAM. */
    @DontInline
    public static void preOffset(Object o, long offset, Object v) {
        if (Replicas.find(o) != 0 && !Replicas.blue(v) && durable(o, offset)) {
            promoteFor(o, v);
        }
    }

    static boolean durable(Object o, long offset) {
        ClassInfo c = ClassInfos.of(o);
        return c.form == Layout.FORM_ARRAY || c.slotAt(offset) >= 0;
    }

    /** Before a reference is stored into {@code o}: if {@code o} is durable, {@code v} becomes so, or this throws and the store does not happen. */
    @DontInline
    public static void pre(Object o, Object v) {
        if (Replicas.find(o) != 0 && !Replicas.blue(v)) {
            promoteFor(o, v);
        }
    }

    @ReservedStackAccess
    private static void promoteFor(Object o, Object v) {
        for (boolean tried = false;; tried = true) {
            PoolException full;
            int gate = Gate.enter();
            try {
                if (Replicas.find(o) != 0) {
                    Promotion.promoteAhead(v);
                }
                return;
            } catch (PoolException e) {
                full = e;
            } finally {
                Gate.exit(gate);
            }
            Collector.makeRoom(full, tried);
        }
    }

    /** As {@link #pre}, for {@code n} references that are about to be copied into {@code array}. */
    @DontInline @ReservedStackAccess
    public static void preRange(Object[] source, int from, int n, Object array) {
        if (Replicas.find(array) == 0) {
            return;
        }
        for (boolean tried = false;; tried = true) {
            PoolException full;
            int gate = Gate.enter();
            try {
                if (Replicas.find(array) != 0) {
                    for (int i = from; i < from + n; i++) {
                        Promotion.promoteAhead(source[i]);
                    }
                }
                return;
            } catch (PoolException e) {
                full = e;
            } finally {
                Gate.exit(gate);
            }
            Collector.makeRoom(full, tried);
        }
    }

    /** After a store to a field. */
    @DontInline @ReservedStackAccess
    public static void field(Object o, int fieldId) {
        if (Replicas.find(o) == 0) {
            return;
        }
        for (boolean tried = false;; tried = true) {
            PoolException full;
            int gate = Gate.enter();
            try {
                long word = Replicas.find(o);
                if (word != 0) {
                    ClassInfo c = ClassInfos.of(o);
                    slot(o, word, c, c.slot(fieldId));
                }
                return;
            } catch (PoolException e) {
                full = e;
            } finally {
                Gate.exit(gate);
            }
            Collector.makeRoom(full, tried);
        }
    }

    /** After a store of {@code bytes} bytes at an offset in DRAM. */
    @DontInline @ReservedStackAccess
    public static void offset(Object o, long offset, long bytes) {
        if (Replicas.find(o) == 0) {
            return;
        }
        ClassInfo c = ClassInfos.of(o);
        if (c.form == Layout.FORM_ARRAY) {
            long size = 1L << c.elementShift;
            long from = offset - c.elementBase >> c.elementShift;
            long to = offset + bytes - c.elementBase + size - 1 >> c.elementShift;
            range(o, (int) from, (int) (to - from));
            return;
        }
        for (boolean tried = false;; tried = true) {
            PoolException full;
            int gate = Gate.enter();
            try {
                long word = Replicas.find(o);
                if (word != 0) {
                    slot(o, word, c, c.slotAt(offset));
                }
                return;
            } catch (PoolException e) {
                full = e;
            } finally {
                Gate.exit(gate);
            }
            Collector.makeRoom(full, tried);
        }
    }

    /**
     * The store of {@code v} to an element of an array that is marked, and its barriers: one passage of the gate for both. Throws what the instruction would, and shows
     * in no stack trace, either.
     */
    @DontInline @Hidden @ReservedStackAccess
    public static void store(Object[] array, int i, Object v) {
        if (Replicas.find(array) == 0) {
            array[i] = v;
            U.storeFence();
            element(array, i);
            return;
        }
        boolean stored = false;
        for (boolean tried = false;; tried = true) {
            PoolException full;
            int gate = Gate.enter();
            try {
                long word = Replicas.find(array);
                long position = word == 0 ? 0 : Promotion.promote(v);
                // Not again: another thread may have stored since.
                if (!stored) {
                    array[i] = v;
                    stored = true;
                    U.storeFence();
                }
                // One that was grey may have got another replica, or none, while v became durable; one that was white may be marked by now.
                if (word == 0 || (word & Replicas.GREY) != 0) {
                    mirror(array, i, 1);
                } else {
                    long at = Replicas.position(word) + Layout.DATA + 8L * i;
                    mirror(array, v, position, word, ClassInfos.of(array).elementAt(i), at);
                    Nvm.writeBack(at, 8);
                    Nvm.fence();
                }
                return;
            } catch (PoolException e) {
                full = e;
            } finally {
                Gate.exit(gate);
            }
            Collector.makeRoom(full, tried);
        }
    }

    /** After a store to an element. */
    @DontInline
    public static void element(Object array, int i) {
        range(array, i, 1);
    }

    /** After stores to {@code n} elements. */
    @DontInline @ReservedStackAccess
    public static void range(Object array, int from, int n) {
        if (n <= 0 || Replicas.find(array) == 0) {
            return;
        }
        for (boolean tried = false;; tried = true) {
            PoolException full;
            int gate = Gate.enter();
            try {
                mirror(array, from, n);
                return;
            } catch (PoolException e) {
                full = e;
            } finally {
                Gate.exit(gate);
            }
            Collector.makeRoom(full, tried);
        }
    }

    /** Brings {@code n} elements to the replica, if there is one. */
    private static void mirror(Object array, int from, int n) {
        long word = Replicas.find(array);
        if (word == 0) {
            return;
        }
        ClassInfo c = ClassInfos.of(array);
        int bytes = ClassInfo.bytes(c.element);
        long at = Replicas.position(word) + Layout.DATA + (long) from * bytes;
        log(word, at, (long) n * bytes, c.element == ClassInfo.REFERENCE);
        for (int i = 0; i < n; i++) {
            mirror(array, word, c.elementAt(from + i), at + (long) i * bytes, c.element);
        }
        Nvm.writeBack(at, (long) n * bytes);
        Nvm.fence();
    }

    /**
     * Whether the replica has the fields of its class. A sentinel's (such as {@code ZoneOffset.UTC}, which caches its rules) has a name in their place. A header
     * that its promoter has not written yet may say either: then the copy is still to come.
     */
    static boolean hasFields(long at, ClassInfo c) {
        return Nvm.getInt(at + Layout.CLASS_INDEX) == c.index;
    }

    private static void slot(Object o, long word, ClassInfo c, int slot) {
        long at = Replicas.position(word);
        if (slot < 0 || !hasFields(at, c)) {
            return;
        }
        mirror(o, word, c.dram[slot], at + c.nvm[slot], c.types[slot]);
        Nvm.writeBack(at + c.nvm[slot], ClassInfo.bytes(c.types[slot]));
        Nvm.fence();
    }

    /** Brings one value to the replica, and again while DRAM changes under it. */
    private static void mirror(Object o, long word, long dram, long at, char type) {
        if (type == ClassInfo.REFERENCE) {
            mirror(o, null, 0, word, dram, at);
            return;
        }
        int bytes = ClassInfo.bytes(type);
        long bits = Slots.bits(o, dram, type);
        for (;;) {
            log(word, at, bytes, false);
            Nvm.putBits(at, bits, bytes);
            U.fullFence();
            long now = Slots.bits(o, dram, type);
            if (now == bits) {
                DurableGraph.stored();
                return;
            }
            bits = now;
        }
    }

    /** The same for a reference; that of {@code v} is at {@code position}, and stays there inside the gate. */
    private static void mirror(Object o, Object v, long position, long word, long dram, long at) {
        Object now = U.getReferenceVolatile(o, dram);
        do {
            if (now != v) {
                v = now;
                position = Promotion.promote(now);
            }
            log(word, at, 8, true);
            Nvm.putBits(at, position, 8);
            U.fullFence();
            now = U.getReferenceVolatile(o, dram);
        } while (now != v);
        DurableGraph.stored();
    }

    /**
     * Before a store to the pool: the old bytes are logged, if this thread is in a section. Not those of a replica that was grey, by {@code word}: what they are until
     * the copy comes is what lay there before, and the copy has this store, as it has those that the section made while the object was white.
     */
    static void log(long word, long at, long bytes, boolean references) {
        if ((word & Replicas.GREY) != 0) {
            return;
        }
        if (!references) {
            UndoLog.before(at, bytes);
        } else if (UndoLog.beforeReferences(at, bytes)) {
            // The log refers to them now.
            for (long a = at; a < at + bytes; a += 8) {
                Collector.linked(Nvm.getLong(a));
            }
        }
    }

    // ---- static fields

    @DontInline
    public static void preStatic(Object v, int fieldId) {
        if (v != null && DurableGraph.active() && Roots.known(fieldId)) {
            promoteForRoot(v);
        }
    }

    /** What the initialiser of {@code c} is to store to its own root: the value that recovery has given to it, if the pool was opened within that initialiser, else its own. */
    @DontInline
    public static Object initial(Object v, Class<?> c, int fieldId) {
        Object recovered = DurableGraph.active() ? Roots.takeRecovered(c, FieldIds.name(fieldId)) : null;
        return recovered != null ? recovered : v;
    }

    @DontInline
    public static void preStaticOffset(Class<?> c, long offset, Object v) {
        if (v != null && DurableGraph.active()) {
            Roots.requireOne(c, offset);
            if (Roots.at(c, offset) != null) {
                promoteForRoot(v);
            }
        }
    }

    @ReservedStackAccess
    private static void promoteForRoot(Object v) {
        for (boolean tried = false;; tried = true) {
            PoolException full;
            int gate = Gate.enter();
            try {
                // The pool may have been closed while the gate was shut.
                if (DurableGraph.active()) {
                    Promotion.promoteAhead(v);
                }
                return;
            } catch (PoolException e) {
                full = e;
            } finally {
                Gate.exit(gate);
            }
            Collector.makeRoom(full, tried);
        }
    }

    @DontInline
    public static void staticField(int fieldId) {
        if (DurableGraph.active() && Roots.known(fieldId)) {
            Roots.stored(FieldIds.owner(fieldId), FieldIds.name(fieldId));
        }
    }

    @DontInline
    public static void staticOffset(Class<?> c, long offset) {
        Roots.Root root = DurableGraph.active() ? Roots.at(c, offset) : null;
        if (root != null) {
            Roots.mirror(root);
        }
    }
}
