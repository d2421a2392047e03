package io.towa.graph;

import io.towa.medium.Nvm;
import io.towa.pool.Layout;
import io.towa.pool.Records;
import java.util.Arrays;
import java.util.List;

/** By index of the class record: how replicas are laid out, as far as one needs to know to follow their references. */
final class ReplicaLayouts {
    /** Of arrays of references, all of whose elements are some. */
    private static final int[] ALL = {};
    private static final int[] NONE = {};

    private final Records.ClassRecord[] records;
    private final int[][] references;

    ReplicaLayouts(List<Records.ClassRecord> classes) {
        int most = 0;
        for (int i = 0; i < classes.size(); i++) {
            most = Math.max(most, classes.get(i).index());
        }
        records = new Records.ClassRecord[most + 1];
        references = new int[most + 1][];
        for (int i = 0; i < classes.size(); i++) {
            Records.ClassRecord c = classes.get(i);
            records[c.index()] = c;
            references[c.index()] = references(c);
        }
    }

    private static int[] references(Records.ClassRecord c) {
        if (c.form() == Layout.FORM_ARRAY) {
            return c.hasReferences() ? ALL : NONE;
        }
        int[] offsets = new int[c.fields().size()];
        int n = 0;
        for (int i = 0; i < offsets.length; i++) {
            if (c.fields().get(i).type() == ClassInfo.REFERENCE) {
                offsets[n++] = c.fields().get(i).offset();
            }
        }
        return n == 0 ? NONE : Arrays.copyOf(offsets, n);
    }

    /** Tells {@code v} what the replica at {@code at} refers to, null too. False: the pool does not have its class. */
    boolean visit(long at, Loads.Visitor v) {
        int index = Nvm.getInt(at + Layout.CLASS_INDEX);
        int[] offsets = index > 0 && index < references.length ? references[index] : null;
        if (offsets == null) {
            return false;
        }
        if (offsets == ALL) {
            long end = at + Layout.DATA + 8L * Nvm.getInt(at + Layout.LENGTH);
            for (long slot = at + Layout.DATA; slot < end; slot += 8) {
                v.position(Nvm.getLong(slot));
            }
            return true;
        }
        for (int i = 0; i < offsets.length; i++) {
            v.position(Nvm.getLong(at + offsets[i]));
        }
        return true;
    }

    /** Bytes of a replica of the class with that index, whose length field says {@code length}; more than any block has if there is no such class, or no such length. */
    long bytes(int index, int length) {
        Records.ClassRecord c = index > 0 && index < records.length ? records[index] : null;
        return c == null || length < 0 ? Long.MAX_VALUE : c.replicaBytes(length);
    }
}
