package io.towa.graph;

import io.towa.barrier.Header;
import io.towa.medium.Nvm;
import io.towa.pool.Allocator;
import io.towa.pool.Layout;
import jdk.internal.misc.Unsafe;

/**
 * Which object has which replica: from objects, by identity, to words.
 *
 * <pre>
 *   word   63..44 slot of the batch (while grey)   43..4 replica's position / 16   bit 0 grey        0: no replica, white
 *
 *   an object without an identity hash      gets one that is made from its replica's position, and is found in {@link PositionTable}
 *   any other                               is found in {@link IdentityTable}
 * </pre>
 *
 * <p>What is behind an {@link io.towa.OnDemand} and not loaded yet stands as an {@link Unloaded}, which says itself where the replica is.
 *
 * <p>What must always hold: an object that has an identity hash (as far as its header shows it) is never given another, so who is first to give it one decides which
 * replica it has; who marks an object (its identity hash is in the header by then) has entered it before it fences every thread, so that a writer either finds the
 * entry or has made its store visible to the copy.
 *
 * <p>Both tables hold objects strongly: one that has left the durable graph stays until the collector's next cycle. When that has found out which replicas
 * are reached, and until their entries are gone, an entry without a mark is no entry ({@link #onlyMarked}).
 */
public final class Replicas {
    static final long GREY = 1;
    static final int SLOT_SHIFT = 44;
    private static final long POSITION = (1L << SLOT_SHIFT) - 16;
    private static final Unsafe U = Unsafe.getUnsafe();

    /** What is in an object's slot while it is grey. */
    private record Grey(Object object, long word) {}

    private static volatile PositionTable byPosition = new PositionTable();
    private static volatile IdentityTable byIdentity = new IdentityTable(0);
    /** Entries of {@link #byPosition}; of another object after each reset. */
    private static volatile Counter entries = new Counter();
    /** While the collector drops entries: says which of them count; another object in each cycle. */
    private static volatile Judge onlyMarked;

    /** Says which entries count: those whose replica is marked. */
    static final class Judge {
        private final Allocator allocator;

        private Judge(Allocator allocator) {
            this.allocator = allocator;
        }

        boolean alive(long word) {
            return word == 0 || allocator.marked(position(word));
        }

        /** After it has said no: outside the gate the marks may have gone meanwhile, since the cycle ended: then they said nothing. */
        boolean stillJudges() {
            U.loadFence();
            return onlyMarked == this;
        }
    }

    private Replicas() {}

    /** Forgets all, and makes room for {@code objects} that have identity hashes already. */
    static void reset(long objects) {
        onlyMarked = null;
        install(new PositionTable(), 0, new IdentityTable(objects));
    }

    /** Forgets all and shows these instead. */
    static void install(PositionTable positions, long inPositions, IdentityTable identities) {
        byPosition = positions;
        byIdentity = identities;
        entries = new Counter();
        entries.add(inPositions);
    }

    static Judge judge() {
        return onlyMarked;
    }

    /** The object's word; 0 if it has no replica. */
    static long find(Object o) {
        // What is new has no identity hash; asking for it would make one, and look for it where nothing is in the cache.
        if (!Header.marked(o)) {
            return 0;
        }
        int hash = System.identityHashCode(o);
        long word = atItsPosition(o, hash);
        if (word != 0) {
            return word;
        }
        word = byIdentity.find(o, hash);
        return word == 0 && o instanceof Unloaded unloaded ? unloaded.word() : word;
    }

    /** The object whose replica is at {@code position}, where one is that is reached; null if it is not loaded. */
    static Object at(long position) {
        Object o = byPosition.get(position);
        return o != null ? o : byIdentity.at(Nvm.getInt(position + Layout.HASH), position);
    }

    /**
     * Shows objects that were brought back since: those of {@code positions}. The caller is inside the gate.
     *
     * @param copied they stay in {@code positions}, too: for {@link #withdraw(PositionTable)}
     */
    static void add(PositionTable positions, boolean copied) {
        byPosition.absorb(positions, copied);
    }

    /** Hides them again. */
    static void withdraw(PositionTable positions) {
        byPosition.withdraw(positions);
    }

    /** The same for one whose identity hash does not lead to its replica. */
    static void add(Object o, long position) {
        byIdentity.insert(o, System.identityHashCode(o), position);
    }

    static void withdraw(Object o) {
        byIdentity.set(o, System.identityHashCode(o), 0);
    }

    /** So many have come by {@link #add(PositionTable, boolean)}. */
    static void added(long objects) {
        entries.add(objects);
    }

    /** Its word, if it is where its hash leads; else 0. */
    private static long atItsPosition(Object o, int hash) {
        long position = PositionTable.positionOf(hash);
        for (;;) {
            long word = word(byPosition.get(position), o, position);
            Judge judge = onlyMarked;
            if (word == 0 || judge == null || judge.alive(word)) {
                return word;
            }
            if (judge.stillJudges()) {
                return 0;
            }
        }
    }

    /** What a slot says of {@code o}. */
    private static long word(Object slot, Object o, long position) {
        if (slot == o) {
            return position;
        }
        return slot instanceof Grey grey && grey.object == o ? grey.word : 0;
    }

    /** Entries whose replica has no mark count as absent from now on; null: all count. The gate is shut. */
    static void onlyMarked(Allocator judge) {
        onlyMarked = judge == null ? null : new Judge(judge);
    }

    public static boolean durable(Object o) {
        return find(o) != 0;
    }

    /** Whether {@code o} is null, or durable and not about to become so. */
    static boolean blue(Object o) {
        if (o == null) {
            return true;
        }
        long word = find(o);
        return word != 0 && (word & GREY) == 0;
    }

    static long position(long word) {
        return word & POSITION;
    }

    static int slot(long word) {
        return (int) (word >>> SLOT_SHIFT);
    }

    static long grey(long position, int slot) {
        return position | (long) slot << SLOT_SHIFT | GREY;
    }

    /**
     * Marks {@code o}, and enters it with {@code word}, which bears the position of a block of {@code bytes} bytes that is the caller's; if it has none.
     *
     * <p>Two threads at once: of an object without a hash the one whose hash comes into the header has it, and its entry is there by then, so the other finds that;
     * of one with a hash, the one that is first in the table.
     *
     * @return 0 if entered, else the word that it has
     */
    static long insert(Object o, long word, long bytes) {
        long position = position(word);
        int own = PositionTable.hashAt(position);
        if (own != 0 && !Header.marked(o)) {
            byPosition.put(position, bytes, (word & GREY) != 0 ? new Grey(o, word) : o);
            if (Header.give(o, own)) {
                entries.add(1);
                return 0;
            }
            byPosition.set(position, null);
        }
        int hash = System.identityHashCode(o);
        long had = atItsPosition(o, hash);
        return had != 0 ? had : byIdentity.insert(o, hash, word);
    }

    /** {@code o}, which is entered as grey with a replica at {@code position}, is blue from now on. */
    static void blue(Object o, long position) {
        if (word(byPosition.get(position), o, position) != 0) {
            byPosition.set(position, o);
        } else {
            byIdentity.set(o, System.identityHashCode(o), position);
        }
    }

    /** {@code o}, which is entered with a replica at {@code position}, is entered no more. */
    static void remove(Object o, long position) {
        if (word(byPosition.get(position), o, position) != 0) {
            byPosition.set(position, null);
            entries.add(-1);
        } else {
            byIdentity.set(o, System.identityHashCode(o), 0);
        }
    }

    /**
     * Drops the entries that do not count since {@link #onlyMarked}, beside the program: look-ups take them for absent already, and what is inserted
     * meanwhile is marked.
     *
     * @return how many were dropped
     */
    static long retain() {
        Judge judge = onlyMarked;
        long dropped = byPosition.dropUnmarked(judge.allocator);
        entries.add(-dropped);
        return dropped + byIdentity.drop(judge);
    }

    /** After a sweep, while the gate is shut: what is kept for segments that are free. */
    static void dropFree(Allocator allocator) {
        byPosition.dropFree(allocator);
    }

    static long size() {
        return entries.sum() + byIdentity.size();
    }
}
