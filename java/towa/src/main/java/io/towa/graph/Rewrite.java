package io.towa.graph;

import io.towa.medium.Nvm;
import io.towa.pool.Allocator;
import io.towa.pool.Records;
import io.towa.pool.UndoLog;
import java.util.List;

/**
 * Writes the graph afresh when classes have changed since it was saved: objects are in DRAM, in today's form; now all of them get new replicas, and
 * then the roots are switched to these.
 *
 * <pre>
 *   marks forgotten; new blocks come from beyond what was used, and are born marked
 *   every root's value is promoted          the old graph is untouched: a crash leaves it, and the new blocks are free
 *   the values of all roots, one section    a crash leaves the old graph, or the new one
 *   sweep                                   what is not marked is free: the old graph
 * </pre>
 */
final class Rewrite {
    private Rewrite() {}

    static void run(Allocator allocator, List<Records.ClassRecord> classes, List<Recovery.Bound> roots, long objects) {
        allocator.unmark();
        allocator.colour(true);
        for (int i = 0; i < classes.size(); i++) {
            allocator.mark(classes.get(i).at());
        }
        for (int i = 0; i < Roots.records().size(); i++) {
            allocator.mark(Roots.records().get(i).at());
        }
        Replicas.reset(objects);
        long[] positions = new long[roots.size()];
        int gate = Gate.enter();
        try {
            for (int i = 0; i < positions.length; i++) {
                positions[i] = Promotion.promote(roots.get(i).value);
            }
        } finally {
            Gate.exit(gate);
        }
        switchRoots(roots, positions);
        allocator.sweep();
    }

    /** The values of all roots, each in the record that its field has now. */
    static void switchRoots(List<Recovery.Bound> roots, long[] positions) {
        int gate = Gate.enter();
        try {
            UndoLog.begin();
            // First those that are left: one may be another's new place.
            for (int i = 0; i < positions.length; i++) {
                Recovery.Bound b = roots.get(i);
                if (record(b) != b.record) {
                    store(b.record.value(), 0);
                }
            }
            for (int i = 0; i < positions.length; i++) {
                Recovery.Bound b = roots.get(i);
                // A record without a value and without a field may be another's new place.
                if (b.root != null || positions[i] != 0) {
                    store(record(b).value(), positions[i]);
                }
            }
            UndoLog.end();
        } finally {
            Gate.exit(gate);
        }
    }

    /** The record that has the value from now on. */
    private static Records.RootRecord record(Recovery.Bound b) {
        return b.root != null ? b.root.record : b.record;
    }

    private static void store(long at, long position) {
        UndoLog.beforeReferences(at, 8);
        Nvm.putLongDurably(at, position);
    }
}
