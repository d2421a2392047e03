package io.towa.graph;

import io.towa.OnDemand;
import io.towa.PoolException;
import io.towa.PoolException.Reason;
import io.towa.barrier.Header;
import io.towa.medium.Nvm;
import io.towa.pool.Allocator;
import io.towa.pool.Layout;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import jdk.internal.misc.Unsafe;

/**
 * One thread of the walk: makes objects, fills them.
 *
 * <p>An item of work is a replica's position, with the piece of its array that comes next. An object is no work if all it refers to has been met, or is
 * without references itself: then it is filled when it is made.
 */
final class RecoveryWorker extends Thread {
    private static final Unsafe U = Unsafe.getUnsafe();
    private static final int PIECE_SHIFT = 10;
    /** An item of work: position / 16 in the lower bits, the piece in the upper. */
    private static final int POSITION_BITS = 40;
    private static final long POSITION = (1L << POSITION_BITS) - 1;
    /** Objects that one thread makes in less time than it takes to call others. */
    private static final int MANY = 1 << 13;
    /** Replicas that two threads are not to make at once, for one of the objects would be in vain: more bytes than that. */
    private static final int LARGE = Layout.SEGMENT;

    /** A constant that had an identity hash already, other than the saved one; or an object that was saved without (0). */
    record Rehashed(Object object, long position, int saved) {}

    /** A constant that its enum does not have any more: no fault in an array that only tells in which order the constants were ({@link EnumRepairs}). */
    record Gone(Object[] array, int index, String name, PoolException fault) {}

    private final RecoveryWalk walk;
    private final ClassMapping[] mappings;
    private final PositionTable met;
    private final Allocator allocator;
    private final long frontier;
    private long[] work = new long[1024];
    private int size;
    final List<Rehashed> rehashed = new ArrayList<>();
    final List<Object> suspects = new ArrayList<>();
    /** Elements of arrays of an enum that stand for constants which it does not have any more. */
    final List<Gone> gone = new ArrayList<>();
    /** OnDemands that are not followed, and where that would lead. */
    final List<OnDemand<?>> onDemands = new ArrayList<>();
    private long[] behind = new long[16];
    /** Objects that this thread has made, and with how many it calls the others. */
    long made;
    private long callOthersAt = MANY;
    final Strays strays;
    /** Beside a running program: constants, which the program has, too, and may make durable meanwhile. */
    final Strays constants;
    boolean interruptedWhileWaiting;

    /** For messages: whose reference is being followed. */
    private long holderAt;
    private ClassMapping holder;
    private int holderSlot;
    private String rootName;
    /** Class index of what {@link #reach} found. */
    private int reachedClass;

    RecoveryWorker(RecoveryWalk walk) {
        super(null, null, "towa-recovery", 0, false);
        this.walk = walk;
        mappings = walk.from.mappings();
        met = walk.met;
        allocator = walk.from.allocator();
        frontier = walk.frontier;
        strays = new Strays(met);
        constants = new Strays(met);
    }

    /** The object of a root. */
    Object root(long at, String name) {
        rootName = name;
        holder = null;
        return reach(at);
    }

    @Override
    public void run() {
        try {
            do {
                while (size > 0) {
                    if (walk.isAsked(this)) {
                        walk.answer();
                    }
                    if (walk.hungry() && size > 1) {
                        giveHalf();
                    }
                    if (made > callOthersAt) {
                        callOthersAt = Long.MAX_VALUE;
                        walk.callOthers();
                    }
                    size--;
                    step((work[size] & POSITION) << 4, work[size] >>> POSITION_BITS);
                    if (walk.failed()) {
                        return;
                    }
                }
                while ((size = walk.take(work, this)) == RecoveryWalk.ASKED) {
                    walk.answer();
                }
            } while (size > 0);
            if (!walk.failed() && !walk.beside) {
                walk.markBlocks();
            }
            if (!walk.failed() && !walk.beside) {
                strays.enter(walk.strays());
            }
        } catch (Throwable e) {
            walk.fail(e);
        } finally {
            if (interruptedWhileWaiting) {
                Thread.currentThread().interrupt();
            }
        }
    }

    /** The older half: nearer to the roots, so more hangs on it. */
    private void giveHalf() {
        int n = size / 2;
        walk.give(work, n);
        System.arraycopy(work, n, work, 0, size - n);
        size -= n;
    }

    private void push(long at, long piece) {
        if (size == work.length) {
            work = Arrays.copyOf(work, 2 * size);
        }
        work[size++] = at >>> 4 | piece << POSITION_BITS;
    }

    private void step(long at, long piece) {
        Object o = met.get(at);
        ClassMapping c = mappings[Nvm.getInt(at + Layout.CLASS_INDEX)];
        if (c.form == Layout.FORM_OBJECT) {
            fillReferences(o, at, c, false);
        } else {
            fillPiece((Object[]) o, at, c, piece);
        }
    }

    /**
     * Sets the references of {@code o}.
     *
     * @param atHand stop where one leads to what has not been met and has references: without that nothing is met through what is met here, and so on
     * @return whether all are set
     */
    private boolean fillReferences(Object o, long at, ClassMapping c, boolean atHand) {
        int[] from = c.refNvm;
        for (int i = 0; i < from.length; i++) {
            long to = Nvm.getLong(at + from[i]);
            if (to != 0) {
                holderAt = at;
                holder = c;
                holderSlot = i;
                Object[] slots = slots(to);
                Object v = known(to, slots);
                if (v == null) {
                    if (atHand && !isLeaf(to)) {
                        return false;
                    }
                    v = meet(to, slots);
                }
                if (c.refTypes[i] != null && c.refFits[i] != reachedClass) {
                    fits(v, c, i, to);
                }
                U.putReference(o, c.refDram[i], v);
            }
        }
        if (c.isString && !FromReplica.isSoundString(o)) {
            throw new PoolException(Reason.DAMAGED, walk.from.pool() + ": the string at " + at + " is damaged; restore the file from a copy");
        }
        return true;
    }

    /** Whether what is at {@code to}, if it is an object, has no references: so meeting it meets nothing else. */
    private boolean isLeaf(long to) {
        ClassMapping c = mapping(to);
        return c.form <= Layout.FORM_ARRAY && c.refTypes.length == 0;
    }

    private void fillPiece(Object[] a, long at, ClassMapping c, long piece) {
        int begin = (int) (piece << PIECE_SHIFT);
        int end = Math.min(a.length, begin + (1 << PIECE_SHIFT));
        if (end < a.length) {
            push(at, piece + 1);
        }
        // A large array is old at once, and a single store into it takes the JVM's collector a fence (G1's barrier).
        boolean large = a.length > 1 << PIECE_SHIFT;
        Object[] part = large ? (Object[]) java.lang.reflect.Array.newInstance(c.type.getComponentType(), end - begin) : a;
        int first = large ? begin : 0;
        for (int i = begin; i < end; i++) {
            long to = Nvm.getLong(at + Layout.DATA + 8L * i);
            if (to != 0) {
                holderAt = at;
                holder = c;
                holderSlot = i;
                if (c.type.getComponentType().isEnum() && isGone(a, i, to)) {
                    continue;
                }
                Object v = reach(to);
                if (c.refTypes[0] != null && c.refFits[0] != reachedClass) {
                    fits(v, c, 0, to);
                }
                U.putReference(part, c.info.elementAt(i - first), v);
            }
        }
        if (large) {
            System.arraycopy(part, 0, a, begin, end - begin);
        }
    }

    /** Whether there is a constant at {@code to} that its enum does not have any more: noted, for who refers to the array decides whether that is a fault. */
    private boolean isGone(Object[] a, int i, long to) {
        try {
            reach(to);
            return false;
        } catch (PoolException e) {
            ClassMapping of = mapping(to);
            if (of.form != Layout.FORM_ENUM || e.reason() != Reason.CHANGED_CLASS) {
                throw e;
            }
            gone.add(new Gone(a, i, Constants.text(to) + " of " + of.type.getName(), e));
            return true;
        }
    }

    /** Whether a replica may begin at {@code at}: what it says can be read. */
    private boolean isPlace(long at) {
        return (at & 15) == 0 && at >= Layout.HEAP && at <= frontier - Layout.DATA;
    }

    /** The referent fits the type, and so will others of its class: of a constant the class in the record says nothing. */
    private void fits(Object v, ClassMapping c, int slot, long to) {
        if (!c.refTypes[slot].isInstance(v)) {
            throw new PoolException(Reason.CHANGED_CLASS, walk.from.pool() + ": " + where() + " refers to a " + v.getClass().getName() + " (at " + to
                + "), which is no " + c.refTypes[slot].getName() + "; give the field its old type back, or restore the file from a copy");
        }
        if (mappings[reachedClass].form <= Layout.FORM_ARRAY) {
            c.refFits[slot] = reachedClass;
        }
    }

    /** The object of the replica at {@code at}, made if nobody has; its class' index in {@link #reachedClass}. */
    private Object reach(long at) {
        Object[] slots = slots(at);
        Object o = known(at, slots);
        return o != null ? o : meet(at, slots);
    }

    private Object[] slots(long at) {
        if (!isPlace(at)) {
            throw damaged(at, "is no place of an object");
        }
        return met.slots(at);
    }

    /** As {@link #reach}, by the slots around {@code at}; null if nobody has made it. */
    private Object known(long at, Object[] slots) {
        Object o = slots == null ? null : PositionTable.get(at, slots);
        if (o == null && walk.beside) {
            o = Replicas.at(at);
        }
        if (o != null) {
            // The slot is that of the block, wherever in it the reference leads.
            if (!allocator.begins(at)) {
                throw damaged(at, "lies in the midst of another");
            }
            reachedClass = Nvm.getInt(at + Layout.CLASS_INDEX);
        }
        return o;
    }

    private ClassMapping mapping(long at) {
        int classIndex = Nvm.getInt(at + Layout.CLASS_INDEX);
        ClassMapping c = classIndex > 0 && classIndex < mappings.length ? mappings[classIndex] : null;
        if (c == null) {
            throw damaged(at, "has class " + classIndex + ", of which there is no record");
        }
        if (!c.reached) {
            walk.byProgram(c, this);
            c.require();
        }
        return c;
    }

    /** Makes the object of the replica at {@code at}, if no other thread is first. */
    private Object meet(long at, Object[] slots) {
        ClassMapping c = mapping(at);
        reachedClass = c.record.index();
        long bytes = bytes(at, c);
        if (!allocator.fits(at, bytes)) {
            throw damaged(at, "of class " + c.record.name() + " with " + bytes + " bytes overlaps something else");
        }
        int saved = Nvm.getInt(at + Layout.HASH);
        if (saved < 0) {
            throw damaged(at, "has identity hash " + saved);
        }
        if (bytes <= LARGE) {
            return meet(at, bytes, slots, c, saved);
        }
        synchronized (walk.turn(at)) {
            Object o = met.get(at);
            return o != null ? o : meet(at, bytes, slots, c, saved);
        }
    }

    private Object meet(long at, long bytes, Object[] slots, ClassMapping c, int saved) {
        int leads = PositionTable.hashAt(at);
        Object o;
        int hash = saved;
        if (c.form > Layout.FORM_ARRAY) {
            o = constant(at, c);
            if (saved != 0) {
                Header.restore(o, saved);
            }
            hash = System.identityHashCode(o);
        } else {
            if (saved == 0) {
                // Nobody asked for it, but barriers know durable objects by it.
                hash = leads != 0 ? leads : Math.max(1, (int) (at * 0x9E3779B97F4A7C15L >>> 33));
            }
            o = make(at, c);
            Header.set(o, hash);
        }
        Object first = met.claim(at, bytes, slots, o);
        if (first != null) {
            return first;
        }
        made++;
        if (c.form > Layout.FORM_ARRAY && walk.beside) {
            constants.add(o, at);
        } else if (hash != leads) {
            strays.add(o, at);
        }
        if (hash != saved) {
            rehashed.add(new Rehashed(o, at, saved));
        }
        if (c.form > Layout.FORM_ARRAY) {
            return o;
        }
        if (c.suspect || c.counted && walk.from.recount() || c.library && walk.from.evolved()) {
            suspects.add(o);
        }
        if (c.isOnDemand && walk.lazily) {
            onDemand((OnDemand<?>) o, Nvm.getLong(at + c.refNvm[0]));
            return o;
        }
        if (c.refTypes.length != 0 && !filled(o, at, c)) {
            push(at, 0);
        }
        return o;
    }

    /** Fills {@code o} if what it refers to is at hand. */
    private boolean filled(Object o, long at, ClassMapping c) {
        if (c.form == Layout.FORM_ARRAY) {
            return false;
        }
        long through = holderAt;
        ClassMapping of = holder;
        int slot = holderSlot;
        int reached = reachedClass;
        boolean all = fillReferences(o, at, c, true);
        holderAt = through;
        holder = of;
        holderSlot = slot;
        reachedClass = reached;
        return all;
    }

    /** What {@code o} refers to, at {@code to}, is for later. */
    private void onDemand(OnDemand<?> o, long to) {
        if (to != 0 && !isPlace(to)) {
            throw damaged(to, "is no place of an object");
        }
        if (onDemands.size() == behind.length) {
            behind = Arrays.copyOf(behind, 2 * behind.length);
        }
        behind[onDemands.size()] = to;
        onDemands.add(o);
    }

    long behind(int i) {
        return behind[i];
    }

    /** See {@link RecoveryWalk#at}. */
    Object find(long at) {
        rootName = "an OnDemand";
        holder = null;
        return known(at, met.slots(at));
    }

    /** Bytes of the replica, which lie within the used part of the pool. */
    private long bytes(long at, ClassMapping c) {
        long bytes;
        if (c.form == Layout.FORM_OBJECT) {
            bytes = c.record.instanceBytes();
        } else {
            int length = Nvm.getInt(at + Layout.LENGTH);
            if (length < 0) {
                throw damaged(at, "has length " + length);
            }
            bytes = Layout.DATA + (c.form == Layout.FORM_ARRAY ? c.info.arrayBytes(length) : length);
        }
        if (bytes > frontier - at) {
            throw damaged(at, "of class " + c.record.name() + " with " + bytes + " bytes goes beyond the used part of the file");
        }
        return bytes;
    }

    private Object constant(long at, ClassMapping c) {
        String text = Constants.text(at);
        Object o;
        try {
            if (c.form == Layout.FORM_NAMED) {
                Errand.Find errand = new Errand.Find(text, c, walk.from.names());
                walk.byProgram(errand, this);
                o = errand.found();
            } else {
                o = Constants.resolve(text, c.form, c.type, walk.from.names());
            }
        } catch (PoolException e) {
            throw new PoolException(e.reason(), walk.from.pool() + ": " + where() + ": " + e.getMessage(), e);
        }
        if (o == null) {
            throw damaged(at, "stands for " + text + ", which is null");
        }
        return o;
    }

    private Object make(long at, ClassMapping c) {
        try {
            return FromReplica.make(at, c);
        } catch (InstantiationException e) {
            throw damaged(at, "is of class " + c.record.name() + ", which has no instances");
        }
    }

    private String where() {
        if (holder == null) {
            return rootName;
        }
        if (holder.form == Layout.FORM_ARRAY) {
            return "element " + holderSlot + " of the " + holder.type.getTypeName() + " at " + holderAt;
        }
        return "field " + holder.refNames[holderSlot] + " (offset " + holder.refNvm[holderSlot] + ") of the " + holder.type.getName() + " at " + holderAt;
    }

    private PoolException damaged(long at, String what) {
        return new PoolException(Reason.DAMAGED, walk.from.pool() + ": " + where() + " refers to " + at + ", which " + what + "; restore the file from a copy");
    }
}
