package io.towa.graph;

import io.towa.NotDurableException;
import io.towa.PoolException;
import io.towa.barrier.UnsafeWrites;
import io.towa.barrier.WhiteGate;
import io.towa.medium.Nvm;
import io.towa.pool.Layout;
import io.towa.pool.UndoLog;
import jdk.internal.misc.Unsafe;
import jdk.internal.vm.annotation.DontInline;
import jdk.internal.vm.annotation.ReservedStackAccess;

/**
 * Volatile and atomic stores to an object that is durable: the slow paths of their barriers.
 *
 * <pre>
 *   lock (the referent is durable)  |  mirror: the replica, written back, fenced  |  the program's store to DRAM  |  unlock: do they agree?
 * </pre>
 *
 * Under the lock of the replica, the replica first: so nobody reads what is not durable. On an object that is not durable they happen inside {@link WhiteGate}.
 *
 * <p>Each is one aligned store of at most 8 bytes to the pool: a crash shows the old value or the new. Source: RBP, section 4.2 (volatile).
 */
public final class LockedStores {
    private static final Unsafe U = Unsafe.getUnsafe();

    /** Frames of {@link Promotion#roomOnStack}. */
    private static final int ROOM = 40;

    private LockedStores() {}

    /** Where a field lies in DRAM; -1 if it is not part of replicas. */
    public static long fieldOffset(Object o, int fieldId) {
        ClassInfo c = ClassInfos.of(o);
        int slot = c.slot(fieldId);
        return slot < 0 ? -1 : c.dram[slot];
    }

    /** As {@link #lock(Object, long, Object)}, for a primitive. */
    public static int lock(Object o, long offset) {
        return lock(o, offset, null);
    }

    /**
     * Before a volatile or atomic store into {@code o}: {@code v} is durable, and the replica locked, when this returns. If {@code o}
     * is no longer durable, the white gate is entered instead.
     *
     * @return below 0, for {@link #unlock}; above 0, for {@link WhiteGate#exit}
     */
    @DontInline
    public static int lock(Object o, long offset, Object v) {
        try {
            return lockFor(o, offset, v);
        } catch (NotDurableException | PoolException e) {
            if (MapRepairs.isReserved(o, offset)) {
                release(o, offset, e);
            }
            throw e;
        }
    }

    /**
     * ConcurrentHashMap.compute and computeIfAbsent reserve an empty bin for what they make, and cannot go on if that is refused: the bin is emptied again, or each later
     * store to it would fail.
     */
    private static void release(Object table, long offset, RuntimeException why) {
        try {
            UnsafeWrites.putReferenceVolatile(U, table, offset, null);
        } catch (PoolException e) {
            why.addSuppressed(e);
        }
    }

    private static int lockFor(Object o, long offset, Object v) {
        // For all that comes until unlock: an error in between would leave the gate, or the replica, held for ever.
        Promotion.roomOnStack(ROOM, 0, 0, 0, 0);
        for (boolean tried = false;;) {
            int gate = Gate.enter();
            boolean kept = false;
            PoolException full = null;
            try {
                // Not while it is grey: if its batch failed, another would copy it without a look at this lock.
                long word = Promotion.settled(o);
                if (word != 0) {
                    Promotion.promote(v == null || Stores.durable(o, offset) ? v : null);
                    // Under the lock no room can be made for the log.
                    UndoLog.reserve();
                    int stripe = Stripes.lock(Replicas.position(word));
                    if (Replicas.position(Replicas.find(o)) == Replicas.position(word)) {
                        kept = true;
                        return -1 - (gate | stripe << 16);
                    }
                    Stripes.unlock(stripe);
                }
            } catch (PoolException e) {
                full = e;
            } finally {
                if (!kept) {
                    Gate.exit(gate);
                }
            }
            if (full != null) {
                Collector.makeRoom(full, tried);
                tried = true;
                continue;
            }
            int white = WhiteGate.enter();
            if (Replicas.find(o) == 0) {
                return white;
            }
            WhiteGate.exit(white);
        }
    }

    @DontInline @ReservedStackAccess
    public static void unlock(int token) {
        int both = -1 - token;
        int stripe = both >>> 16;
        Stripes.Pending p = Stripes.pending(stripe);
        try {
            if (p.o != null) {
                agree(p);
            }
        } finally {
            p.o = null;
            Stripes.unlock(stripe);
            Gate.exit(both & 0xffff);
        }
    }

    /**
     * After the store to DRAM, still under the lock: a plain store to the same field, which takes no lock, may have brought its value to the replica after
     * ours, and looked at DRAM again before ours was there. Either we see its value here, or it sees ours.
     */
    private static void agree(Stripes.Pending p) {
        for (;;) {
            U.fullFence();
            long bits;
            if (p.reference) {
                Object v = U.getReferenceOpaque(p.o, p.offset);
                long word = v == null ? 0 : Replicas.find(v);
                if (v != null && (word == 0 || (word & Replicas.GREY) != 0)) {
                    // A plain store's, which has its own mirroring still to come.
                    return;
                }
                bits = Replicas.position(word);
            } else {
                bits = Slots.raw(p.o, p.offset, p.bytes);
            }
            if (Nvm.getBits(p.at, p.bytes) == bits) {
                return;
            }
            Stores.log(p.word, p.at, p.bytes, p.reference);
            if (p.reference) {
                Collector.linked(bits);
            }
            Nvm.putBits(p.at, bits, p.bytes);
            Nvm.writeBack(p.at, p.bytes);
            Nvm.fence();
        }
    }

    /** Under the lock, before DRAM: the replica's reference at this offset. */
    @DontInline
    public static void mirrorRef(Object o, long offset, Object v) {
        long word = v == null ? 0 : Replicas.find(v);
        Collector.linked(Replicas.position(word));
        mirror(o, offset, Replicas.position(word), 8, true);
    }

    /** Under the lock, before DRAM: the replica's bits at this offset; durable when it returns. */
    @DontInline
    public static void mirrorBits(Object o, long offset, long bits, int bytes) {
        mirror(o, offset, bits, bytes, false);
    }

    private static void mirror(Object o, long offset, long bits, int bytes, boolean reference) {
        long word = Replicas.find(o);
        if (word == 0) {
            return;
        }
        ClassInfo c = ClassInfos.of(o);
        long at;
        if (c.form == Layout.FORM_ARRAY) {
            long within = offset - c.elementBase;
            at = Replicas.position(word) + Layout.DATA + (c.element == ClassInfo.REFERENCE ? within >> c.elementShift << 3 : within);
        } else {
            int slot = c.slotAt(offset);
            if (slot < 0 || !Stores.hasFields(Replicas.position(word), c)) {
                return;
            }
            at = Replicas.position(word) + c.nvm[slot];
        }
        Stores.log(word, at, bytes, reference);
        boolean done = false;
        try {
            Nvm.putBits(at, bits, bytes);
            Nvm.writeBack(at, bytes);
            Nvm.fence();
            DurableGraph.stored();
            Stripes.Pending p = Stripes.pending(Stripes.of(Replicas.position(word)));
            p.offset = offset;
            p.word = word;
            p.at = at;
            p.bytes = bytes;
            p.reference = reference;
            p.o = o;
            done = true;
        } finally {
            if (!done) {
                restore(o, offset, at, bytes, reference);
            }
        }
    }

    /** The store to DRAM will not come: the stack ended. */
    @ReservedStackAccess
    private static void restore(Object o, long offset, long at, int bytes, boolean reference) {
        long bits;
        if (reference) {
            Object v = U.getReference(o, offset);
            bits = v == null ? 0 : Replicas.position(Replicas.find(v));
        } else {
            bits = Slots.raw(o, offset, bytes);
        }
        Nvm.putBits(at, bits, bytes);
        Nvm.writeBack(at, bytes);
        Nvm.fence();
    }
}
