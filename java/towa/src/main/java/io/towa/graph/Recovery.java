package io.towa.graph;

import io.towa.TowaOptions;
import io.towa.pool.Allocator;
import io.towa.pool.PoolFile;
import io.towa.pool.Records;
import java.util.List;

/** Brings the objects of a pool back. */
final class Recovery {
    private Recovery() {}

    static void recover(PoolFile pool, Allocator allocator, List<Records.ClassRecord> classes, TowaOptions options) {
        throw new UnsupportedOperationException();
    }

    static double lastSeconds() {
        return 0;
    }
}
