package io.towa.graph;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;

/**
 * Objects that one thread of a walk has made and whose identity hash does not lead to their replica: while the walk runs they are found by their positions, as all are;
 * then in a table by identity.
 */
final class Strays {
    private final PositionTable met;
    private final List<Object> objects = new ArrayList<>();
    private long[] at = new long[16];

    Strays(PositionTable met) {
        this.met = met;
    }

    void add(Object o, long position) {
        if (objects.size() == at.length) {
            at = Arrays.copyOf(at, 2 * at.length);
        }
        at[objects.size()] = position;
        objects.add(o);
    }

    int count() {
        return objects.size();
    }

    /** The walk is over: from now on they are in {@code table}. */
    void enter(IdentityTable table) {
        leavePositions();
        for (int i = 0; i < objects.size(); i++) {
            Object o = objects.get(i);
            int hash = System.identityHashCode(o);
            // Two replicas may stand for one constant.
            if (met.get(PositionTable.positionOf(hash)) != o) {
                table.insert(o, hash, at[i]);
            }
        }
    }

    /** The same, of some of them, beside a running program: they are in its table. A constant may have another replica there, which became durable since. */
    void show(int from, int to) {
        for (int i = from; i < to; i++) {
            if (Replicas.find(objects.get(i)) == 0) {
                Replicas.add(objects.get(i), at[i]);
            }
        }
    }

    /** Before {@link #show}: they are not found by their positions any more. */
    void leavePositions() {
        for (int i = 0; i < objects.size(); i++) {
            met.set(at[i], null);
        }
    }

    /** After {@link #show}, whole or in part. */
    void hide() {
        for (int i = 0; i < objects.size(); i++) {
            if (Replicas.find(objects.get(i)) == at[i]) {
                Replicas.withdraw(objects.get(i));
            }
        }
    }
}
