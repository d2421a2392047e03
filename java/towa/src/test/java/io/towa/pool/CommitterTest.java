package io.towa.pool;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.towa.Durability;
import io.towa.PoolException;
import io.towa.TowaOptions;
import io.towa.graph.Gate;
import io.towa.medium.Nvm;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

/** Pools with commits, and what becomes of them under each durability. */
class CommitterTest {
    private static final TowaOptions RARELY = TowaOptions.DEFAULT.withInterval(Duration.ofHours(1));

    @TempDir
    Path dir;

    private PoolFile open(Durability d) {
        return new PoolFile(dir.resolve("p"), 8 << 20, d);
    }

    private void close(PoolFile p, Committer c) {
        if (c != null) {
            c.end();
            Gate.shut();
            c.last();
            Gate.open();
        }
        p.close();
    }

    /** As if the process had died: what was not committed is gone. */
    private static void kill(PoolFile p, Committer c) {
        c.end();
        p.abandon();
    }

    @Test
    void onlyWhatWasCommittedIsThere() {
        PoolFile p = open(Durability.POWER);
        Committer c = Committer.start(p, RARELY);
        Nvm.putLong(100_000, 1);
        c.sync();
        Nvm.putLong(100_000, 2);
        kill(p, c);
        p = open(Durability.POWER);
        assertEquals(1, Nvm.getLong(100_000));
        c = Committer.start(p, RARELY);
        Nvm.putLong(100_000, 3);
        close(p, c);
        assertFalse(Files.exists(dir.resolve("p.log")));
        p = open(Durability.PROCESS);
        assertEquals(3, Nvm.getLong(100_000));
        Nvm.putLong(100_000, 4);
        p.close();
        p = open(Durability.POWER);
        assertEquals(4, Nvm.getLong(100_000));
        p.close();
    }

    @Test
    void theLogOfAnotherPoolIsRefused() throws Exception {
        PoolFile other = new PoolFile(dir.resolve("other"), 8 << 20, Durability.POWER);
        Committer c = Committer.start(other, RARELY);
        Nvm.putLong(100_000, 1);
        c.sync();
        kill(other, c);
        open(Durability.PROCESS).close();
        byte[] before = Files.readAllBytes(dir.resolve("p"));
        Files.copy(dir.resolve("other.log"), dir.resolve("p.log"));
        PoolException e = assertThrows(PoolException.class, () -> open(Durability.PROCESS));
        assertTrue(e.getMessage().contains("p.log"), e.getMessage());
        assertThrows(PoolException.class, () -> open(Durability.POWER));
        assertArrayEquals(before, Files.readAllBytes(dir.resolve("p")));
        Files.delete(dir.resolve("p"));
        assertThrows(PoolException.class, () -> open(Durability.POWER), "a new pool, too");
    }

    @Test
    void aFileInTheWayIsLeftAlone() throws Exception {
        Files.writeString(dir.resolve("p.log"), "12:00 started");
        open(Durability.PROCESS).close();
        assertThrows(PoolException.class, () -> open(Durability.POWER));
        assertEquals("12:00 started", Files.readString(dir.resolve("p.log")));
    }

    @Test
    void aWholeLogIsAppliedAtOpening() throws Exception {
        PoolFile p = open(Durability.POWER);
        Committer c = Committer.start(p, RARELY);
        Nvm.putLong(100_000, 1);
        c.sync();
        kill(p, c);
        try (var f = java.nio.channels.FileChannel.open(dir.resolve("p"), java.nio.file.StandardOpenOption.WRITE)) {
            f.write(java.nio.ByteBuffer.allocate(4096), 98304);
        }
        p = open(Durability.PROCESS);
        assertEquals(1, Nvm.getLong(100_000));
        p.close();
        assertFalse(Files.exists(dir.resolve("p.log")));
    }

    @Test
    void manyPagesAtOnce() {
        PoolFile p = new PoolFile(dir.resolve("big"), 512L << 20, Durability.POWER);
        Committer c = Committer.start(p, RARELY);
        for (int round = 0; round < 2; round++) {
            long pages = round == 0 ? 70_000 : 25_000;
            for (long n = 0; n < pages; n++) {
                Nvm.putLong((16 + n) * 4096, n + round);
            }
            long start = System.nanoTime();
            c.sync();
            System.out.printf("%d pages: gate shut %.1f ms, commit %.0f ms%n", pages, c.lastPauseMillis(), (System.nanoTime() - start) / 1e6);
        }
        for (int n = 0; n < 20; n++) {
            for (long k = 0; k < 1000; k++) {
                Nvm.putLong((16 + (n * 7919 + k * 61) % 25_000) * 4096, n);
            }
            c.sync();
        }
        System.out.printf("1000 pages: gate shut %.2f ms%n", c.lastPauseMillis());
        c.end();
        p.close();
        p = new PoolFile(dir.resolve("big"), 512L << 20, Durability.PROCESS);
        for (long n = 25_000; n < 70_000; n++) {
            assertEquals(n, Nvm.getLong((16 + n) * 4096));
        }
        p.close();
    }

    @Test
    void aPoolMayBeGreaterThanMemory() {
        PoolFile p = new PoolFile(dir.resolve("huge"), 1L << 40, Durability.POWER);
        Nvm.putLong((1L << 40) - 8, 5);
        p.close();
    }

    /** Its sync failed, and all of it is on the device: a pool that is closed without it must still need its log. */
    @Test
    void aFirstCommitThatFailedIsNotLeftBesideACleanPool() throws Exception {
        open(Durability.PROCESS).close();
        PoolFile p = open(Durability.POWER);
        Nvm.putLong(100_000, 1);
        int[] pages = {100_000 / 4096};
        p.log().begin(pages);
        java.nio.ByteBuffer page = java.nio.ByteBuffer.allocateDirect(4096).order(java.nio.ByteOrder.LITTLE_ENDIAN);
        p.log().append(page.putLong(100_000 % 4096, 1));
        p.abandon();
        assertTrue(Files.exists(dir.resolve("p.log")), "the pool was called clean");
        p = open(Durability.POWER);
        assertEquals(0, Nvm.getLong(100_000));
        p.close();
    }

    /** A kill or a full disk ends a creation before the first superblock. */
    @Test
    void aCreationThatWasStoppedIsMadeAnew() throws Exception {
        for (int bytes : new int[] {0, 1, 4096, 65536}) {
            Files.deleteIfExists(dir.resolve("p"));
            Files.write(dir.resolve("p"), new byte[bytes]);
            Files.setPosixFilePermissions(dir.resolve("p"), java.nio.file.attribute.PosixFilePermissions.fromString("rw-------"));
            assertFalse(io.towa.graph.DurableGraph.holdsData(dir.resolve("p")));
            open(Durability.PROCESS).close();
            assertTrue(io.towa.graph.DurableGraph.holdsData(dir.resolve("p")));
        }
        byte[] used = new byte[4096];
        used[4000] = 1;
        Files.write(dir.resolve("p"), used);
        assertThrows(PoolException.class, () -> open(Durability.PROCESS));
    }
}
