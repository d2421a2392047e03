package io.towa.graph;

import java.lang.ref.WeakReference;

/**
 * Stands in an {@link io.towa.OnDemand} for a value that is in the pool only: a reference to a replica. Barriers, promotion and checker take it for the object whose
 * replica that is ({@link Replicas#find}); programs never see it.
 *
 * <p>What must always hold: while one is alive the collector takes its replica for reached ({@link Loads#each}). So a holder that was unlinked from the
 * durable graph, and whose replica has gone, can still load its value, or be linked again.
 */
public final class Unloaded {
    final long position;
    /** The pool's run that it belongs to. */
    final Loads.Session session;
    /** As {@link Loads} keeps it; empty as soon as nobody is left who could load the value, but for what a finalizer digs out. */
    final WeakReference<Unloaded> entry;

    Unloaded(long position, Loads.Session session) {
        this.position = position;
        this.session = session;
        // Barriers look for a replica only of what has an identity hash.
        System.identityHashCode(this);
        entry = new WeakReference<>(this);
    }

    /** See {@link Replicas#find}. */
    long word() {
        return session.isOpen() && entry.get() == this ? position : 0;
    }
}
