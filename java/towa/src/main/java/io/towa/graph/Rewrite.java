package io.towa.graph;

import io.towa.medium.Nvm;
import io.towa.pool.Allocator;
import io.towa.pool.Layout;
import io.towa.pool.Records;
import io.towa.pool.UndoLog;
import java.util.List;

/**
 * Writes the graph afresh when classes have changed since it was saved: objects are in DRAM, in today's form; now all of them get new replicas, and
 * then the roots are switched to these.
 *
 * <pre>
 *   the old graph is marked, by the classes as they were: also what only a field leads to that is no more
 *   sweep                                   what is not marked is free
 *   every root's value is promoted          the old graph is untouched: a crash leaves it, and the new blocks, which are born marked, are free
 *   the values of all roots, one section    a crash leaves the old graph, or the new one
 *   sweep                                   what is not marked is free: the old graph
 * </pre>
 */
final class Rewrite {
    private Rewrite() {}

    static void run(Allocator allocator, List<Records.ClassRecord> classes, List<Recovery.Bound> roots, long objects) {
        markOld(allocator, classes);
        markRecords(allocator, classes);
        allocator.sweep();
        allocator.colour(true);
        markRecords(allocator, classes);
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

    /** Marks all objects that the pool's roots reach, and no others. No thread changes the pool meanwhile. */
    private static void markOld(Allocator allocator, List<Records.ClassRecord> classes) {
        allocator.unmark();
        ReplicaLayouts layouts = new ReplicaLayouts(classes);
        Positions open = new Positions();
        Loads.Visitor push = open::push;
        for (int i = 0; i < Roots.records().size(); i++) {
            open.push(Nvm.getLong(Roots.records().get(i).value()));
        }
        while (!open.isEmpty()) {
            long at = open.pop();
            // What only a dropped field leads to was not looked at before; if it is damaged, it is not kept.
            if (at != 0 && allocator.inHeap(at) && allocator.fits(at, layouts.bytes(Nvm.getInt(at + Layout.CLASS_INDEX), Nvm.getInt(at + Layout.LENGTH)))
                && allocator.mark(at)) {
                layouts.visit(at, push);
            }
        }
    }

    private static void markRecords(Allocator allocator, List<Records.ClassRecord> classes) {
        for (int i = 0; i < classes.size(); i++) {
            allocator.mark(classes.get(i).at());
        }
        for (int i = 0; i < Roots.records().size(); i++) {
            allocator.mark(Roots.records().get(i).at());
        }
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
