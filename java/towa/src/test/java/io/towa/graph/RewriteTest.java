package io.towa.graph;

import static io.towa.graph.Versions.get;
import static io.towa.graph.Versions.make;
import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.towa.PoolException;
import io.towa.TowaOptions;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

/** Writing a graph afresh takes room that is free, and nothing that the old graph has ({@link Rewrite}). */
class RewriteTest {
    @TempDir
    Path dir;

    private Versions versions;

    @BeforeEach
    void none() {
        versions = new Versions(dir);
    }

    private static TowaOptions with(ClassLoader l) {
        return TowaOptions.DEFAULT.withLoader(l);
    }

    /** Each time all is written afresh, and what was there before is free: the file stays as it is. */
    @Test
    void anyNumberOfRewritesTakesTheRoomOfTwo() throws Exception {
        ClassLoader[] each = {versions.classes("class P { byte[] all = new byte[300_000]; int v = 5; P next; }"),
            versions.classes("class P { P next; long more; byte[] all; int v; }"), versions.classes("class P { byte[] all; int v; }")};
        Path p = SavedPool.file();
        for (int i = 0; i < 40; i++) {
            DurableGraph.open(p, with(each[i % 3]).withCapacity(2 << 20), false);
            if (i == 0) {
                SavedPool.root(SavedPool.class, "root");
                SavedPool.root = make(each[0], "P");
                Roots.mirror(Roots.all()[0]);
            }
            assertEquals(5, get(SavedPool.root, "v"));
            assertEquals(i > 0, Recovery.last().rewritten());
            assertEquals(List.of(), Checker.check());
            DurableGraph.close();
        }
    }

    /** The old graph is not touched, not even where only a field leads to that is no more: a program of the old version may open what a crash has left. */
    @Test
    void whatADroppedFieldLeadsToIsThereUntilTheEnd() throws Exception {
        ClassLoader old = versions.classes("class P { int v = 5; Object gone = new Object[] {\"a\", new int[] {1, 2, 3}, new P[1]}; P next; }");
        ClassLoader now = versions.classes("class P { P next; long v; byte[] more; }");
        Path p = SavedPool.save(make(old, "P"));
        // So that there is something free in between.
        DurableGraph.open(p, with(old), false);
        DirectPool.set(SavedPool.root, "next", make(old, "P"));
        DirectPool.set(SavedPool.root, "next", null);
        DurableGraph.close();
        List<byte[]> states = new ArrayList<>();
        CrashAt.run(p, SavedPool.image(p), with(now), states);
        int before = 0;
        Path q = SavedPool.file();
        for (byte[] s : states) {
            Files.write(q, s);
            try {
                Object o = SavedPool.load(q, with(old));
                Object[] gone = (Object[]) get(o, "gone");
                assertEquals("a", gone[0]);
                assertArrayEquals(new int[] {1, 2, 3}, (int[]) gone[1]);
                before++;
            } catch (PoolException e) {
                assertEquals(PoolException.Reason.CHANGED_CLASS, e.reason(), e.getMessage());
                // The new graph is there.
                assertEquals(5L, get(SavedPool.load(q, with(now)), "v"));
                assertFalse(Recovery.last().rewritten(), e.getMessage());
            }
        }
        assertTrue(before > 10, before + " of " + states.size());
        Files.delete(q);
    }
}
