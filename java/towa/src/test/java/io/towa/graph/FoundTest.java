package io.towa.graph;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertSame;

import java.util.ArrayList;
import java.util.List;
import java.util.Random;
import org.junit.jupiter.api.Test;

/** What a recovery has found comes into the tables, all of it and each once. */
class FoundTest {
    private static final int OBJECTS = 3 * Found.SIZE + 1234;

    /** Objects, some of them twice (two replicas may stand for one constant); the replica of the n-th entry is at 16 * (n + 1). */
    private static List<Object> objects() {
        List<Object> all = new ArrayList<>();
        Random random = new Random(7);
        while (all.size() < OBJECTS) {
            boolean again = !all.isEmpty() && random.nextInt(50) == 0;
            all.add(again ? all.get(random.nextInt(all.size())) : new Object());
        }
        return all;
    }

    private static Found arranged(List<Object> objects) {
        Found found = new Found();
        Found.Chunk chunk = found.add();
        for (int i = 0; i < objects.size(); i++) {
            // Chunks of several threads: not all are full.
            if (chunk.count == Found.SIZE - (i & 1) * 100) {
                chunk = found.add();
            }
            chunk.prepare(16L * (i + 1), Replicas.spread(System.identityHashCode(objects.get(i))));
            chunk.publish(objects.get(i));
        }
        for (int c = 0; c < found.chunks(); c++) {
            found.chunk(c).arrange();
        }
        return found;
    }

    @Test
    void everyEntryIsInItsShard() {
        List<Object> objects = objects();
        Found found = arranged(objects);
        Found.Shard shard = new Found.Shard();
        boolean[] seen = new boolean[OBJECTS];
        int entries = 0;
        for (int s = 0; s < Replicas.SHARDS; s++) {
            found.gather(s, shard);
            for (int i = 0; i < shard.count; i++) {
                int entry = (int) (shard.positions[i] / 16) - 1;
                assertSame(objects.get(entry), shard.objects[i]);
                assertEquals(Replicas.spread(System.identityHashCode(shard.objects[i])), shard.spreads[i]);
                assertEquals(s, Replicas.shard(shard.spreads[i]));
                entries += seen[entry] ? 0 : 1;
                seen[entry] = true;
            }
        }
        assertEquals(OBJECTS, entries);
    }

    @Test
    void everyObjectIsInItsTable() {
        List<Object> objects = objects();
        Found found = arranged(objects);
        Found.Shard shard = new Found.Shard();
        Replicas.Loading[] tables = new Replicas.Loading[Replicas.SHARDS];
        for (int s = 0; s < tables.length; s++) {
            found.gather(s, shard);
            tables[s] = new Replicas.Loading(shard);
        }
        try {
            Replicas.install(tables);
            assertEquals(objects.stream().distinct().count(), Replicas.size());
            for (int i = 0; i < OBJECTS; i++) {
                // Of two replicas one counts.
                assertSame(objects.get(i), objects.get((int) (Replicas.find(objects.get(i)) / 16) - 1));
            }
            Object stranger = new Object();
            System.identityHashCode(stranger);
            assertEquals(0, Replicas.find(stranger));
            // And it is a table as any other.
            for (int i = 0; i < OBJECTS; i++) {
                Replicas.insert(new Object(), 16L * (OBJECTS + i + 1));
            }
            assertEquals(objects.stream().distinct().count() + OBJECTS, Replicas.size());
        } finally {
            Replicas.reset(0);
        }
    }
}
