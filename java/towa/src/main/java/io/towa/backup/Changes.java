package io.towa.backup;

import io.towa.graph.Gate;
import io.towa.medium.DirtyPages;
import io.towa.medium.Nvm;
import io.towa.pool.Committer;

/**
 * The pages of the pool that changed since {@link #begin}, or since they were last taken.
 *
 * <pre>
 *   mapping          who tells                                          what the file has when begin returns
 *   shared, DAX      each store marks its page, while a backup is made  every store that ended before: the file is what was stored to
 *   private          each store marks its page, as ever, for both       the same, because a commit is waited for
 * </pre>
 *
 * <p>What must always hold: following begins, and pages are taken, with the gate shut. So no store is between the two, and a page that is copied after it was
 * taken and before the gate is opened is as it is at that moment. Without a backup nothing here is in the way of a store.
 */
final class Changes {
    private final Committer committer;
    private final DirtyPages pages;
    /** For the commits; null: there are none. */
    private final DirtyPages more;

    /** @param committer null: the pool's mapping is not private */
    Changes(Committer committer, long capacity) {
        this.committer = committer;
        pages = new DirtyPages(capacity);
        more = committer == null ? null : new DirtyPages(capacity);
    }

    /**
     * Begins to follow; then has the file hold every store that ended before the call.
     *
     * @throws io.towa.PoolException a commit failed
     */
    void begin() {
        follow(pages, more);
        if (committer != null) {
            // What the commit under way has was stored before following began. It is in the file when the next one is.
            committer.sync();
        }
    }

    void end() {
        follow(null, null);
    }

    private void follow(DirtyPages by, DirtyPages commits) {
        Gate.shut();
        try {
            if (committer != null) {
                committer.follow(by, commits);
            } else {
                Nvm.follow(by);
            }
        } finally {
            Gate.open();
        }
    }

    /** How many there are, more or less. */
    int count() {
        return pages.count() + (committer == null ? 0 : committer.dirtyPages());
    }

    /** Their numbers, in order. The gate is shut. */
    int[] take() {
        if (committer != null) {
            committer.handOver();
        }
        return pages.take();
    }
}
