package io.towa.graph;

/**
 * Who waits for whom: RBP's interfering groups (section 4.4).
 *
 * <p>A batch is one thread's promotion. If it meets an object that another batch has made grey, the two become one group; all of a group
 * turn blue at once, when the last has copied: so no blue replica ever points to one that is not complete, and threads that need
 * each other's objects do not wait in a circle. A batch that fails (an object that cannot be durable, a full pool) fails its group; the others undo and try again.
 *
 * <p>The late joiner: an object may still look grey when its group has ended. Its slot is then empty (or another batch's, which costs a needless wait):
 * {@link #join} and {@link #await} look under the lock, find nobody, and take it for done, which it is.
 */
final class Batches {
    private static final Object LOCK = new Object();
    private static final int SLOTS = 1 << 12;
    private static final Batch[] ACTIVE = new Batch[SLOTS];
    private static int hint;

    private Batches() {}

    /** What a batch is to the others. Fields are under the lock. */
    static class Batch {
        int slot;
        /** Union-find: the group's representative, itself if it is that. */
        private Batch leader;
        /** Of the leader: members that still copy; whether one has failed; whether all is over. */
        private int copying;
        private boolean failed;
        private boolean over;
    }

    private static Batch leader(Batch b) {
        while (b.leader != b) {
            b.leader = b.leader.leader;
            b = b.leader;
        }
        return b;
    }

    static void begin(Batch b) {
        synchronized (LOCK) {
            b.leader = b;
            b.copying = 1;
            b.failed = false;
            b.over = false;
            while (ACTIVE[hint] != null) {
                hint = hint + 1 & SLOTS - 1;
            }
            b.slot = hint;
            ACTIVE[hint] = b;
            hint = hint + 1 & SLOTS - 1;
        }
    }

    /** Makes one group of {@code b} and the batch in {@code slot}, if that is still at work. */
    static void join(Batch b, int slot) {
        synchronized (LOCK) {
            Batch other = ACTIVE[slot];
            if (other == null) {
                return;
            }
            Batch mine = leader(b);
            Batch theirs = leader(other);
            if (mine == theirs || theirs.over) {
                return;
            }
            theirs.leader = mine;
            mine.copying += theirs.copying;
            mine.failed |= theirs.failed;
        }
    }

    /**
     * Says that {@code b} has copied all (or failed), and waits for its group.
     *
     * @return whether the whole group succeeded
     */
    static boolean arrive(Batch b, boolean good) {
        synchronized (LOCK) {
            Batch l = leader(b);
            l.failed |= !good;
            if (--l.copying == 0) {
                l.over = true;
                LOCK.notifyAll();
            } else {
                while (!leader(b).over) {
                    sleep();
                }
            }
            return !leader(b).failed;
        }
    }

    /** Gives the slot back: the batch's objects are no longer grey. */
    static void end(Batch b) {
        synchronized (LOCK) {
            ACTIVE[b.slot] = null;
            LOCK.notifyAll();
        }
    }

    /**
     * Waits until the group of the batch in {@code slot} is over; the caller has no batch.
     *
     * @return false if the group failed, or nobody is there: look at the object again
     */
    static boolean await(int slot) {
        synchronized (LOCK) {
            Batch other = ACTIVE[slot];
            if (other == null) {
                return false;
            }
            while (!leader(other).over && ACTIVE[slot] == other) {
                sleep();
            }
            return ACTIVE[slot] == other && !leader(other).failed;
        }
    }

    /** Interrupts are for the program: kept, not acted upon. */
    private static void sleep() {
        boolean interrupted = false;
        for (;;) {
            try {
                LOCK.wait(100);
                break;
            } catch (InterruptedException e) {
                interrupted = true;
            }
        }
        if (interrupted) {
            Thread.currentThread().interrupt();
        }
    }
}
