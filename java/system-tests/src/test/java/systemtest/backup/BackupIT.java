package systemtest.backup;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertTrue;
import static org.junit.jupiter.api.Assumptions.assumeTrue;

import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import java.util.Random;
import java.util.stream.Stream;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import systemtest.harness.Rounds;
import systemtest.harness.RustVerify;

/**
 * {@code towa backup} of a pool that a program works in. TOWA_BACKUPS=N makes N copies of each kind, and kills N times; -Dtowa.folder says where, beside memory.
 */
class BackupIT {
    private static final Path MEMORY = Path.of("/dev/shm");
    private static final String WANTED = System.getenv("TOWA_BACKUPS");
    private static final int BACKUPS = WANTED == null ? 2 : Integer.parseInt(WANTED);

    private Path folder;
    private Path inMemory;

    @BeforeEach
    void makeFolders() throws Exception {
        assumeTrue(RustVerify.program() != null);
        folder = Rounds.folder("backup");
        inMemory = Files.isWritable(MEMORY) ? Files.createTempDirectory(MEMORY, "towa-backup-") : folder;
    }

    @AfterEach
    void removeFolders() throws Exception {
        Rounds.remove(folder);
        if (Files.exists(inMemory)) {
            Rounds.remove(inMemory);
        }
    }

    @Test
    void aCopyIsOfOneMomentAndHasWhatWasAcknowledgedBefore() throws Exception {
        copies(inMemory, "process", 100, 1024);
    }

    @Test
    void aCopyIsOfOneMomentOnADisk() throws Exception {
        copies(folder, "process", 100, 512);
    }

    @Test
    void aCopyOfWhatIsCommittedIsOfOneMoment() throws Exception {
        copies(folder, "power", 2, 512);
    }

    /** Makes copies, each checked by another program; those of a pool of 64 KiB a block. */
    private void copies(Path where, String durability, int intervalMs, int blocks) throws Exception {
        Path pool = where.resolve("shop.towa");
        Path copy = where.resolve("copy.towa");
        long longest = 0;
        try (Ledgers l = new Ledgers(pool, durability, intervalMs, blocks)) {
            for (int i = 0; i < BACKUPS; i++) {
                l.slow();
                long entries = l.entries();
                long counts = l.counts();
                String said = Ledgers.backUp(pool, copy).succeeded().text();
                assertTrue(said.contains("\"was_open\": true"), said);
                longest = Math.max(longest, l.slow()[1]);
                Ledgers.assertHolds(copy, i % 2 == 0 ? durability : "process", entries, counts);
                l.awaitEntries(100);
            }
        }
        System.out.printf("backup of %s: %d copies, the longest call took %.1f ms%n", durability, BACKUPS, longest / 1e6);
    }

    @Test
    void eitherSideMayBeKilled() throws Exception {
        Random random = new Random(Rounds.seed("backup-kill"));
        for (int i = 0; i < BACKUPS; i++) {
            String durability = i % 2 == 0 ? "process" : "power";
            Path where = Files.createDirectory(inMemory.resolve("round-" + i));
            Path pool = where.resolve("shop.towa");
            Path copy = where.resolve("copy.towa");
            try (Ledgers l = new Ledgers(pool, durability, 2, 512)) {
                long entries = l.entries();
                long counts = l.counts();
                Process tool = Ledgers.start(pool, copy);
                Thread.sleep(random.nextInt(150));
                tool.destroyForcibly().waitFor();
                if (Files.exists(copy)) {
                    Ledgers.assertHolds(copy, durability, entries, counts);
                }
                entries = l.entries();
                counts = l.counts();
                tool = Ledgers.start(pool, copy);
                Thread.sleep(random.nextInt(150));
                l.program.kill();
                // What the program left is copied, then.
                Ledgers.end(tool).succeeded();
                Ledgers.assertHolds(copy, durability, entries, counts);
                Ledgers.check(pool, durability, entries, counts);
                // What the first tool left beside it, the second one removed; the socket went with the next program.
                assertEquals(List.of("shop.towa", "shop.towa.acked"), names(where));
            }
            Rounds.remove(where);
        }
    }

    private static List<String> names(Path folder) throws Exception {
        try (Stream<Path> all = Files.list(folder)) {
            return all.map(p -> p.getFileName().toString()).sorted().toList();
        }
    }

    /** The tool copies the pool when it is closed, if that comes within its time. */
    @Test
    void theProgramMayCloseThePool() throws Exception {
        Path pool = inMemory.resolve("shop.towa");
        Path copy = inMemory.resolve("copy.towa");
        try (Ledgers l = new Ledgers(pool, "process", 100, 1024)) {
            long entries = l.entries();
            Process tool = Ledgers.start(pool, copy);
            Thread.sleep(60);
            long start = System.nanoTime();
            Files.createFile(Path.of(pool + ".close"));
            l.program.expect("closed");
            assertTrue(System.nanoTime() - start < 5_000_000_000L, "Towa.close waited for the tool");
            Ledgers.end(tool).succeeded();
            Ledgers.assertHolds(copy, "process", entries, 0);
        }
    }

    /** No service: what is in its place is left alone, and the refusal says what it is. */
    @Test
    void withoutTheSocketARefusalSaysWhy() throws Exception {
        Path pool = inMemory.resolve("shop.towa");
        Path copy = inMemory.resolve("copy.towa");
        Path socket = inMemory.resolve("shop.towa.sock");
        Files.writeString(socket, "another's");
        try (Ledgers l = new Ledgers(pool, "process", 100, 1)) {
            Ledgers.Said said = Ledgers.backUp(pool, copy);
            assertEquals(4, said.status(), said.text());
            assertTrue(said.text().contains("is no socket, and in the way of one") && said.text().contains("shop.towa.sock"), said.text());
            assertEquals("another's", Files.readString(socket));
            Files.delete(socket);
            said = Ledgers.backUp(pool, copy);
            assertEquals(4, said.status(), said.text());
            assertTrue(said.text().contains("is not there"), said.text());
        }
        assertFalse(Files.exists(copy));
    }

    /** A path to a socket has 107 bytes at most; a pool's may be longer. */
    @Test
    void aLongPathIsNoHindrance() throws Exception {
        Path deep = inMemory;
        for (int i = 0; i < 5; i++) {
            deep = Files.createDirectory(deep.resolve("directory-with-a-long-name-" + "x".repeat(40)));
        }
        Path pool = deep.resolve("pool-with-a-long-name-é-" + "y".repeat(160));
        try (Ledgers l = new Ledgers(pool, "process", 100, 1)) {
            long entries = l.entries();
            Ledgers.backUp(pool, deep.resolve("copy")).succeeded();
            Ledgers.assertHolds(deep.resolve("copy"), "process", entries, 0);
        }
    }
}
