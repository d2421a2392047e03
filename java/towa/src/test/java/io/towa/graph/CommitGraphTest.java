package io.towa.graph;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.towa.Durability;
import io.towa.PoolException;
import io.towa.TowaOptions;
import io.towa.pool.FailingSync;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.List;
import java.util.Random;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

/** A graph in a pool with commits: what the file holds at any moment is a whole graph, and a section is in it or not. */
class CommitGraphTest {
    @TempDir
    Path dir;

    static class Pair {
        long a;
        long p0, p1, p2, p3, p4, p5, p6, p7;
        long b;
        Object[] history = new Object[100];
    }

    @Test
    void theFileIsAlwaysWhole() throws Exception {
        Path file = dir.resolve("p");
        DirectPool.open(file, TowaOptions.DEFAULT.withCapacity(8 << 20).withDurability(Durability.POWER).withInterval(Duration.ofMillis(5)));
        Pair pair = new Pair();
        DirectPool.setRoot(pair);
        boolean[] stop = new boolean[1];
        Throwable[] failure = new Throwable[1];
        Thread writer = new Thread(() -> {
            try {
                Random random = new Random(1);
                for (long n = 1; !stop[0]; n++) {
                    long k = n;
                    Sections.run(() -> {
                        DirectPool.set(pair, "a", k);
                        DirectPool.set(pair.history, random.nextInt(100), "at " + k);
                        DirectPool.set(pair, "b", k);
                    });
                    if (n % 20_000 == 0) {
                        Collector.collect();
                    }
                }
            } catch (Throwable e) {
                failure[0] = e;
            }
        });
        writer.start();
        long last = 0;
        for (int i = 0; i < 40; i++) {
            Thread.sleep(20);
            // The section that stored this one may not have ended: then it does not count yet.
            long before = pair.b - 1;
            DurableGraph.sync();
            byte[] image = image(file);
            long[] found = ab(image);
            assertEquals(found[0], found[1]);
            assertTrue(found[0] >= before && found[0] >= last, "synced " + before + ", found " + found[0]);
            last = found[0];
        }
        stop[0] = true;
        writer.join();
        assertEquals(null, failure[0]);
        assertEquals(List.of(), Checker.check());
        System.out.printf("commits beside sections: longest pause %.2f ms, %d pages%n", DurableGraph.committer().longestPauseMillis(),
            DurableGraph.committer().pagesWritten());
        DirectPool.close();
        assertEquals(pair.a, ab(Files.readAllBytes(file))[0]);
    }

    /** Though the device works again, no commit is made until the pool is opened again; closing says so, and lets the pool go. */
    @Test
    void aSyncThatFailedIsFinal() throws Exception {
        TowaOptions rarely = TowaOptions.DEFAULT.withCapacity(8 << 20).withDurability(Durability.POWER).withInterval(Duration.ofHours(1));
        Path file = dir.resolve("p");
        DirectPool.open(file, rarely);
        Pair pair = new Pair();
        DirectPool.setRoot(pair);
        DurableGraph.sync();
        FailingSync.of(DurableGraph.committer());
        DirectPool.set(pair, "a", 2);
        assertThrows(PoolException.class, DurableGraph::sync);
        DirectPool.set(pair, "a", 3);
        PoolException e = assertThrows(PoolException.class, DurableGraph::sync);
        assertTrue(e.getMessage().contains("open it again"), e.getMessage());
        assertThrows(PoolException.class, DirectPool::close);
        assertFalse(DurableGraph.active());
        DirectPool.open(file, rarely);
        pair = (Pair) DirectPool.root;
        assertEquals(2, pair.a, "the log of the commit was synced");
        DirectPool.set(pair, "a", 4);
        DurableGraph.sync();
        DirectPool.close();
    }

    /** The file's content between two commits. */
    private static byte[] image(Path file) {
        Gate.shut();
        try {
            // The gate keeps the next commit from beginning; what is left of the present one ends.
            byte[] a;
            byte[] b;
            do {
                a = Files.readAllBytes(file);
                Thread.sleep(20);
                b = Files.readAllBytes(file);
            } while (!java.util.Arrays.equals(a, b) || commitIsUnderWay(a));
            return a;
        } catch (IOException | InterruptedException e) {
            throw new AssertionError(e);
        } finally {
            Gate.open();
        }
    }

    /** From when the first page is written until the last one is: the file says so at both ends. */
    private static boolean commitIsUnderWay(byte[] file) {
        java.nio.ByteBuffer b = java.nio.ByteBuffer.wrap(file).order(java.nio.ByteOrder.LITTLE_ENDIAN);
        return b.getLong((int) io.towa.pool.Layout.DONE) != b.getLong(file.length - 8);
    }

    private static int offset(String field) {
        ClassInfo c = ClassInfos.of(Pair.class);
        return c.nvm[c.slotAt(DirectPool.U.objectFieldOffset(DirectPool.field(Pair.class, field)))];
    }

    /** The two numbers of the pair in an image, after undoing. */
    private static long[] ab(byte[] image) {
        return new PoolWalker(image).rootLongs(offset("a"), offset("b"));
    }
}
