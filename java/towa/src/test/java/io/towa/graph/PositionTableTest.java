package io.towa.graph;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNotEquals;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertSame;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.towa.pool.Layout;
import io.towa.pool.SizeClasses;
import java.util.BitSet;
import java.util.Random;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;

class PositionTableTest {
    private static final long END = 32L << 30;

    @Test
    void aHashLeadsBackToItsPosition() {
        Random random = new Random(3);
        for (int i = 0; i < 1_000_000; i++) {
            long position = i < 1000 ? Layout.HEAP + 16L * i : i < 2000 ? END - 16L * (i - 999) : random.nextLong(1, END / 16) * 16;
            int hash = PositionTable.hashAt(position);
            assertTrue(hash > 0);
            assertEquals(position, PositionTable.positionOf(hash));
        }
        for (long position : new long[] {END, END + 16, 2 * END, 1L << 43}) {
            assertEquals(0, PositionTable.hashAt(position), "two positions would have one hash");
        }
    }

    /** As java.util.HashMap places them: a program's own tables must not suffer from where the replicas lie. */
    @ParameterizedTest
    @ValueSource(ints = {32, 48, 64, 128, 512, 1024, 4096, 65536})
    void hashesOfNeighboursAreSpread(int apart) {
        for (int log = 4; log <= 18; log += 2) {
            int buckets = 1 << log;
            BitSet used = new BitSet();
            for (int i = 0; i < buckets / 2; i++) {
                int hash = PositionTable.hashAt(Layout.HEAP + (long) i * apart);
                used.set((hash ^ hash >>> 16) & buckets - 1);
            }
            // Of hashes that were thrown 0.79 of them would have a bucket of their own or be first in one.
            assertTrue(used.cardinality() > buckets / 2 * 0.6, apart + " apart, " + buckets + " buckets: " + used.cardinality());
        }
    }

    /** Several segments of each class, so that no two of all their blocks share a slot, whatever their order. */
    @Test
    void everyBlockHasItsSlot() {
        PositionTable table = new PositionTable();
        for (int pass = 0; pass < 2; pass++) {
            for (int c = 0; c <= SizeClasses.COUNT; c++) {
                for (int s = 0; s < 2; s++) {
                    // Far apart, so in chunks that the table does not have at first.
                    long segment = Layout.HEAP + (c * 2L + s) * 37 * 1024 * Layout.SEGMENT;
                    int bytes = c == SizeClasses.COUNT ? Layout.SEGMENT + 1 : SizeClasses.bytes(c);
                    for (long at = segment; at == segment || at + bytes <= segment + Layout.SEGMENT; at += bytes) {
                        if (pass == 0) {
                            table.put(at, bytes, Long.valueOf(at));
                        } else {
                            assertEquals(Long.valueOf(at), table.get(at));
                        }
                    }
                }
            }
        }
        assertNull(table.get(Layout.HEAP + 36L * 1024 * Layout.SEGMENT));
        assertNull(table.get(1L << 43));
        Object other = new Object();
        long first = Layout.HEAP;
        assertEquals(Long.valueOf(first), table.claim(first, 16, table.slots(first), other));
        table.set(first, null);
        assertNull(table.claim(first, 16, table.slots(first), other));
        assertSame(other, table.get(first));
        assertEquals(Long.valueOf(first + 16), table.get(first + 16));
    }

    @Test
    void blocksAreFoundByTheirBeginnings() {
        for (int c = 0; c < SizeClasses.COUNT; c++) {
            int bytes = SizeClasses.bytes(c);
            for (int within = 0; within < Layout.SEGMENT; within++) {
                boolean begins = within % bytes == 0 && within / bytes < SizeClasses.blocks(c);
                assertEquals(begins ? within / bytes : -1, SizeClasses.block(c, within));
            }
        }
        assertNotEquals(-1, SizeClasses.block(0, 16));
    }
}
