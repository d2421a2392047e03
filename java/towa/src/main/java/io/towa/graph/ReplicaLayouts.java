package io.towa.graph;

import io.towa.pool.Layout;
import io.towa.pool.Records;
import java.util.Arrays;
import java.util.List;

/** By index of the class record: how replicas are laid out, as far as the collector needs to know. */
final class ReplicaLayouts {
    /** Of arrays of references, all of whose elements are some. */
    static final int[] ALL = {};
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

    /** Where a replica of the class with that index has its references, or {@link #ALL}; null if there is no such class. */
    int[] references(int index) {
        return index > 0 && index < references.length ? references[index] : null;
    }

    /** Bytes of a replica of the class with that index, whose length field says {@code length}; more than any block has if there is no such class, or no such length. */
    long bytes(int index, int length) {
        Records.ClassRecord c = index > 0 && index < records.length ? records[index] : null;
        return c == null || length < 0 ? Long.MAX_VALUE : c.replicaBytes(length);
    }
}
