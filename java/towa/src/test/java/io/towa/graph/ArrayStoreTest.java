package io.towa.graph;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertSame;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.towa.Durability;
import io.towa.PoolException;
import io.towa.medium.Nvm;
import io.towa.pool.Allocator;
import io.towa.pool.Layout;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

/** A reference stored to an array by {@link Stores#store}, where something comes in between: what other threads did meanwhile stays. */
class ArrayStoreTest {
    @TempDir
    Path dir;

    @AfterEach
    void close() {
        DirectPool.close();
    }

    /** There was no room for the undo log, the collector ran, the operation is tried again; another thread has stored to that element since. */
    @Test
    void notASecondTime() throws Exception {
        DirectPool.open(dir.resolve("p"), 2 << 20, Durability.PROCESS);
        Object[] array = new Object[1000];
        DirectPool.setRoot(array);
        Object[] values = {"first", "second"};
        DirectPool.set(array, 1, values[0]);
        DirectPool.set(array, 2, values[1]);
        assertThrows(PoolException.class, () -> {
            for (int i = 10; i < array.length; i++) {
                DirectPool.set(array, i, new byte[4000]);
            }
        });
        Thread other = new Thread(() -> {
            while (((Object[]) array)[7] != values[0]) {
                Thread.onSpinWait();
            }
            array[7] = values[1];
        });
        Sections.run(() -> {
            other.start();
            assertThrows(PoolException.class, () -> Stores.store(array, 7, values[0]), "there is room for a block of the log");
        });
        other.join();
        assertSame(values[1], array[7]);
        Stores.element(array, 7);
        assertEquals(List.of(), Checker.check());
    }

    /** The array was about to become durable, by a batch that fails while the value becomes durable: its replica is none any more, and its block may be anybody's. */
    @Test
    void notToAReplicaThatIsNoMore() {
        DirectPool.open(dir.resolve("p"), 16 << 20, Durability.PROCESS);
        DirectPool.setRoot("any");
        Object[] array = new Object[4];
        long[] at = new long[1];
        Allocator.Cache cache = DurableGraph.allocator().acquire();
        int gate = Gate.enter();
        try {
            at[0] = DurableGraph.allocator().allocate(cache, Layout.DATA + 32);
            assertEquals(0, Replicas.insert(array, Replicas.grey(at[0], 5), Layout.DATA + 32));
        } finally {
            Gate.exit(gate);
        }
        boolean[] failed = new boolean[1];
        List<Long> stored = new ArrayList<>();
        Nvm.record(new Nvm.Recorder() {
            @Override
            public void store(long where, long bits, int bytes) {
                stored.add(where);
                if (!failed[0]) {
                    failed[0] = true;
                    Replicas.remove(array, at[0]);
                }
            }

            @Override
            public void writeBack(long where, long bytes) {}

            @Override
            public void fence() {}
        });
        Object[] value = {"becomes durable"};
        try {
            Stores.store(array, 1, value);
        } finally {
            Nvm.record(null);
        }
        assertTrue(failed[0]);
        assertSame(value, array[1]);
        assertTrue(stored.stream().noneMatch(where -> where >= at[0] && where < at[0] + Layout.DATA + 32), "stored to what is no replica");
    }
}
