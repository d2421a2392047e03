package io.towa.graph;

import io.towa.NotDurableException;
import io.towa.barrier.WhiteGate;
import io.towa.events.Events;
import io.towa.medium.Nvm;
import io.towa.medium.SystemCalls;
import io.towa.pool.Allocator;
import io.towa.pool.Layout;
import java.util.Arrays;
import jdk.internal.misc.Unsafe;
import jdk.internal.vm.annotation.DontInline;

/**
 * make_persistent (RBP, section 4.3): an object and all it reaches become durable.
 *
 * <pre>
 *   white --shade--> grey --copied, verified, written back; the whole group has--> blue
 *
 *   shade      identity hash in the header, entry in Replicas, replica allocated
 *   then       a fence in every thread, and every white operation on volatile fields that began before has ended
 *   copy       each field; full fence; each field again: equal, else once more
 *   then       fence; wait for the group (Batches); entries turn blue
 * </pre>
 *
 * Why no store is lost: a writer stores to DRAM, then looks at the mark. If it saw no mark, its store came before the fence in its
 * thread, so the copy reads it. If it saw the mark, it mirrors its store itself; should the copy overwrite that with what it had read
 * before, the verification sees the difference.
 *
 * <p>What must always hold: a replica's position is used only while its object is blue, or grey in this batch's own group: a batch that fails takes
 * its replicas with it.
 *
 * <p>Why stopping anywhere is safe: nothing durable points to a grey replica. The caller links the first one after this returns.
 */
final class Promotion extends Batches.Batch {
    private static final Unsafe U = Unsafe.getUnsafe();

    private static final Object POOL_LOCK = new Object();
    private static Promotion idle;

    private Promotion next;
    private Object[] objects = new Object[16];
    private ClassInfo[] infos = new ClassInfo[16];
    private long[] at = new long[16];
    /** Index of the object through which this one was found, -1 for the first. */
    private int[] parent = new int[16];
    private int count;
    private Allocator.Cache cache;
    /** Which other batch a referent belonged to made this one fail: undo and try again. */
    private boolean retry;

    private Promotion() {}

    /**
     * Position of the replica of {@code o}, which is durable when this returns; 0 for null, and, if the pool skips what cannot be durable,
     * for that. The caller is inside the gate.
     *
     * @throws NotDurableException nothing has become durable
     * @throws io.towa.PoolException FULL: likewise
     */
    static long promote(Object o) {
        return promote(o, false);
    }

    /** The same before the store that links it, which the caller does not do inside this passage of the gate. */
    static void promoteAhead(Object o) {
        promote(o, true);
    }

    @DontInline
    private static long promote(Object o, boolean ahead) {
        if (o == null) {
            return 0;
        }
        for (;;) {
            long word = settled(o);
            if (word != 0) {
                Collector.linked(Replicas.position(word));
                return Replicas.position(word);
            }
            if (DurableGraph.skipping() && isRefused(o)) {
                DurableGraph.skipped();
                return 0;
            }
            roomOnStack(64, 0, 0, 0, 0);
            Promotion p = take();
            try {
                long position = p.run(o, ahead);
                if (position != 0) {
                    return position;
                }
            } finally {
                give(p);
            }
        }
    }

    /**
     * The word of {@code o}, once it is not grey (any more): 0 if it is white, or its batch has failed. Inside the gate a blue object stays blue, its replica where it
     * is; a grey one may yet get another replica in another place.
     */
    static long settled(Object o) {
        for (int spins = 1;; spins++) {
            long word = Replicas.find(o);
            if ((word & Replicas.GREY) == 0) {
                return word;
            }
            Batches.await(Replicas.slot(word));
            // Its group is over, and a thread is about to say of each object what became of it.
            pause(spins);
        }
    }

    private static void pause(int spins) {
        if (spins % 64 == 0) {
            Thread.yield();
        } else {
            Thread.onSpinWait();
        }
    }

    /** So that the stack ends here, where nothing has begun, rather than in the midst of a batch, whose group would wait for ever. */
    static long roomOnStack(int frames, long a, long b, long c, long d) {
        return frames == 0 ? a : roomOnStack(frames - 1, b + frames, c, d, a) + b;
    }

    private static Promotion take() {
        synchronized (POOL_LOCK) {
            Promotion p = idle;
            if (p != null) {
                idle = p.next;
                return p;
            }
        }
        return new Promotion();
    }

    private static void give(Promotion p) {
        p.clear();
        synchronized (POOL_LOCK) {
            p.next = idle;
            idle = p;
        }
    }

    private void clear() {
        if (count > 4096) {
            objects = new Object[16];
            infos = new ClassInfo[16];
            at = new long[16];
            parent = new int[16];
        } else {
            Arrays.fill(objects, 0, count, null);
        }
        count = 0;
    }

    /** Position of the first object's replica; 0 if another batch failed, or took the first object: try again. */
    private long run(Object first, boolean ahead) {
        Object event = Events.begin(Events.PROMOTION);
        Batches.begin(this);
        cache = null;
        retry = false;
        boolean good = false;
        boolean arrived = false;
        try {
            cache = DurableGraph.allocator().acquire();
            if (shade(first, -1) != 0) {
                return 0;
            }
            copyAll();
            Nvm.fence();
            arrived = true;
            good = Batches.arrive(this, true);
            long position = at[0];
            return good ? position : 0;
        } finally {
            if (!arrived) {
                Batches.arrive(this, false);
            }
            settle(good);
            if (good && ahead && count >= Unlinked.LARGE) {
                Unlinked.add(at[0]);
            }
            if (cache != null) {
                DurableGraph.allocator().release(cache);
            }
            Batches.end(this);
            if (good && Events.ended(event)) {
                Events.promotion(event, count, bytes(), first.getClass());
            }
        }
    }

    private long bytes() {
        long bytes = 0;
        for (int i = 0; i < count; i++) {
            int form = infos[i].form;
            bytes += form == Layout.FORM_OBJECT || form == Layout.FORM_ARRAY ? infos[i].replicaBytes(objects[i])
                : Constants.replicaBytes(objects[i], infos[i]);
        }
        return bytes;
    }

    private void settle(boolean good) {
        for (int i = 0; i < count; i++) {
            if (good) {
                Replicas.blue(objects[i], at[i]);
            } else {
                Replicas.remove(objects[i], at[i]);
            }
        }
        if (good) {
            DurableGraph.promoted(count);
        }
    }

    private void copyAll() {
        int scanned = 0;
        int copied = 0;
        while (copied < count) {
            while (scanned < count) {
                scan(scanned++);
            }
            SystemCalls.fenceEveryThread();
            WhiteGate.awaitOld();
            int end = count;
            while (copied < end) {
                copy(copied++);
            }
        }
    }

    /**
     * Gives {@code o} a replica in this batch, if it has none.
     *
     * @return 0 if it has now one of this batch, else the word it had
     */
    private long shade(Object o, int from) {
        ClassInfo info = ClassInfos.of(o);
        ClassInfo as = DurableGraph.constantOrSelf(o, info);
        String refusal = as == info ? info.refusal : Constants.refusal(o);
        if (refusal != null) {
            throw refuse(o, from, refusal);
        }
        DurableGraph.prepare(as, o);
        if (as.form == Layout.FORM_CLASS || as.form == Layout.FORM_NAMED) {
            DurableGraph.prepareMirrored(Constants.mirrored(o, as));
        }
        long bytes = as.form == Layout.FORM_OBJECT || as.form == Layout.FORM_ARRAY ? as.replicaBytes(o) : Constants.replicaBytes(o, as);
        long position = DurableGraph.allocator().allocate(cache, bytes);
        if (count == objects.length) {
            // Before the object is entered: one that is grey and in nobody's list would stay so.
            grow();
        }
        if (as.form > Layout.FORM_ARRAY) {
            Constants.identify(o, as);
        }
        // The identity hash enters the header here: from now on writers see the mark.
        long had = Replicas.insert(o, Replicas.grey(position, slot), bytes);
        if (had != 0) {
            return had;
        }
        objects[count] = o;
        infos[count] = as;
        at[count] = position;
        parent[count] = from;
        count++;
        int length = as.form == Layout.FORM_ARRAY ? java.lang.reflect.Array.getLength(o) : 0;
        Nvm.putInt(position + Layout.CLASS_INDEX, as.index);
        Nvm.putInt(position + Layout.STAMP, DurableGraph.cycle());
        Nvm.putLong(position + Layout.MARK, 0);
        Nvm.putInt(position + Layout.HASH, System.identityHashCode(o));
        Nvm.putInt(position + Layout.LENGTH, length);
        if (as.form != Layout.FORM_OBJECT && as.form != Layout.FORM_ARRAY) {
            Constants.write(position, o, as);
        }
        return 0;
    }

    private static boolean isRefused(Object o) {
        ClassInfo info = ClassInfos.of(o);
        return DurableGraph.constantOrSelf(o, info) == info ? info.refusal != null : Constants.refusal(o) != null;
    }

    private void grow() {
        int n = 2 * count;
        objects = Arrays.copyOf(objects, n);
        infos = Arrays.copyOf(infos, n);
        at = Arrays.copyOf(at, n);
        parent = Arrays.copyOf(parent, n);
    }

    /** Shades what object {@code i} refers to. */
    private void scan(int i) {
        ClassInfo c = infos[i];
        Object o = objects[i];
        if (c.form == Layout.FORM_OBJECT) {
            for (int f = 0; f < c.types.length && c.types[f] == ClassInfo.REFERENCE; f++) {
                reach(U.getReferenceOpaque(o, c.dram[f]), i);
            }
        } else if (c.form == Layout.FORM_ARRAY && c.element == ClassInfo.REFERENCE) {
            Object[] a = (Object[]) o;
            for (int k = 0; k < a.length; k++) {
                reach(a[k], i);
            }
        }
    }

    /** Position of a referent's replica, shading it if it is white; 0 for null and for what the pool skips. */
    private long reach(Object v, int from) {
        if (v == null) {
            return 0;
        }
        for (int spins = 1;; spins++) {
            long word = Replicas.find(v);
            if (word == 0) {
                if (DurableGraph.skipping() && isRefused(v)) {
                    DurableGraph.skipped();
                    return 0;
                }
                word = shade(v, from);
                if (word == 0) {
                    return at[count - 1];
                }
            }
            if ((word & Replicas.GREY) != 0 && Replicas.slot(word) != slot && !(Batches.join(this, Replicas.slot(word)) && Replicas.find(v) == word)) {
                // Its batch is over. If it failed, this replica is none: what is found next counts.
                pause(spins);
                continue;
            }
            Collector.linked(Replicas.position(word));
            return Replicas.position(word);
        }
    }

    /** Copies object {@code i} until the copy agrees. */
    private void copy(int i) {
        ClassInfo c = infos[i];
        if (c.form != Layout.FORM_OBJECT && c.form != Layout.FORM_ARRAY) {
            Nvm.writeBack(at[i], Constants.replicaBytes(objects[i], c));
            return;
        }
        int lock = Stripes.lock(at[i]);
        try {
            do {
                transfer(i, c, false);
                U.fullFence();
            } while (!transfer(i, c, true));
        } finally {
            Stripes.unlock(lock);
        }
        Nvm.writeBack(at[i], c.replicaBytes(objects[i]));
    }

    /** Copies the data of object {@code i}, or tells whether the replica's is equal. */
    private boolean transfer(int i, ClassInfo c, boolean compare) {
        Object o = objects[i];
        long to = at[i];
        if (c.form == Layout.FORM_OBJECT) {
            for (int f = 0; f < c.types.length; f++) {
                long bits = c.types[f] == ClassInfo.REFERENCE ? reach(U.getReferenceOpaque(o, c.dram[f]), i) : Slots.bits(o, c.dram[f], c.types[f]);
                if (!one(to + c.nvm[f], bits, ClassInfo.bytes(c.types[f]), compare)) {
                    return false;
                }
            }
            return true;
        }
        if (c.element != ClassInfo.REFERENCE) {
            long bytes = c.arrayBytes(java.lang.reflect.Array.getLength(o));
            if (compare) {
                return Nvm.equal(o, c.elementBase, 0, to + Layout.DATA, bytes);
            }
            Nvm.copyIn(o, c.elementBase, 0, to + Layout.DATA, bytes);
            return true;
        }
        Object[] a = (Object[]) o;
        for (int k = 0; k < a.length; k++) {
            if (!one(to + Layout.DATA + 8L * k, reach(U.getReferenceOpaque(a, c.elementAt(k)), i), 8, compare)) {
                return false;
            }
        }
        return true;
    }

    private static boolean one(long to, long bits, int bytes, boolean compare) {
        if (compare) {
            return Nvm.getBits(to, bytes) == bits;
        }
        Nvm.putBits(to, bits, bytes);
        return true;
    }

    private NotDurableException refuse(Object o, int from, String why) {
        StringBuilder path = new StringBuilder(Paths.simpleName(o.getClass()));
        Object child = o;
        for (int i = from; i >= 0; i = parent[i]) {
            path.insert(0, Paths.step(objects[i], infos[i], child) + " -> ");
            child = objects[i];
        }
        Events.refused(o.getClass(), path.toString(), why);
        return new NotDurableException(path.toString(), why);
    }
}
