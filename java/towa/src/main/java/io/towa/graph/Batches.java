package io.towa.graph;

/**
 * Who waits for whom: RBP's interfering groups (section 4.4).
 *
 * <p>A batch is one thread's promotion. If it meets an object that another batch has made grey, the two become one group; all of a group
 * turn blue at once, when the last has copied: so no blue replica ever points to one that is not complete, and threads that need
 * each other's objects do not wait in a circle. A batch that fails (an object that cannot be durable, a full pool) fails its group; the others undo and try again.
 *
 * <p>The late joiner: an object may still look grey when its group has ended, well or badly: then its objects turn blue, or white, before the slot is empty. Its
 * slot may by now be another batch's, which costs a needless wait. So whoever came by a grey object looks at it again after {@link #join} or
 * {@link #await}, and believes what it has seen only if the object is still the same shade of grey (after join), or blue.
 *
 * <p>What a group comes to is kept in an object of its own: batches are used again, perhaps before the last of their group has woken.
 */
final class Batches {
    private static final Object LOCK = new Object();
    private static final int SLOTS = 1 << 12;
    private static final Batch[] ACTIVE = new Batch[SLOTS];
    private static int hint;
    /** How many wait on the lock. */
    private static int sleeping;

    private Batches() {}

    /** What a batch is to the others. Fields are under the lock. */
    static class Batch {
        int slot;
        private Group group;
    }

    /** Batches that end together. */
    private static final class Group {
        /** The group that this one has become part of; null: it stands for itself, and the rest counts. */
        Group part;
        /** Members that still copy; whether one has failed; whether all is over. */
        int copying = 1;
        boolean failed;
        boolean over;
    }

    private static Group group(Batch b) {
        Group g = b.group;
        while (g.part != null) {
            g = g.part;
        }
        b.group = g;
        return g;
    }

    static void begin(Batch b) {
        synchronized (LOCK) {
            b.group = new Group();
            while (ACTIVE[hint] != null) {
                hint = hint + 1 & SLOTS - 1;
            }
            b.slot = hint;
            ACTIVE[hint] = b;
            hint = hint + 1 & SLOTS - 1;
        }
    }

    /**
     * Makes one group of {@code b} and the batch in {@code slot}, if that is still at work.
     *
     * @return whether the batch in {@code slot} is in the same group now, or its group has succeeded; false: nobody is there, or its group has failed
     */
    static boolean join(Batch b, int slot) {
        synchronized (LOCK) {
            Batch other = ACTIVE[slot];
            if (other == null) {
                return false;
            }
            Group mine = group(b);
            Group theirs = group(other);
            if (theirs.over) {
                return !theirs.failed;
            }
            if (mine != theirs) {
                theirs.part = mine;
                mine.copying += theirs.copying;
                mine.failed |= theirs.failed;
            }
            return true;
        }
    }

    /**
     * Says that {@code b} has copied all (or failed), and waits for its group.
     *
     * @return whether the whole group succeeded
     */
    static boolean arrive(Batch b, boolean good) {
        synchronized (LOCK) {
            Group g = group(b);
            g.failed |= !good;
            if (--g.copying == 0) {
                g.over = true;
                wake();
            }
            while (!g.over) {
                sleep();
                g = group(b);
            }
            return !g.failed;
        }
    }

    /** Gives the slot back: the batch's objects are no longer grey. */
    static void end(Batch b) {
        synchronized (LOCK) {
            ACTIVE[b.slot] = null;
            wake();
        }
    }

    /** Waits until the group of the batch in {@code slot} is over; the caller has no batch, and looks at the object again. */
    static void await(int slot) {
        synchronized (LOCK) {
            Batch other = ACTIVE[slot];
            while (other != null && ACTIVE[slot] == other && !group(other).over) {
                sleep();
            }
        }
    }

    /** Most batches meet nobody, and a needless notifyAll costs as much as the rest of a small one. */
    private static void wake() {
        if (sleeping != 0) {
            LOCK.notifyAll();
        }
    }

    /** Interrupts are for the program: kept, not acted upon. */
    private static void sleep() {
        boolean interrupted = false;
        sleeping++;
        for (;;) {
            try {
                LOCK.wait(100);
                break;
            } catch (InterruptedException e) {
                interrupted = true;
            }
        }
        sleeping--;
        if (interrupted) {
            Thread.currentThread().interrupt();
        }
    }
}
