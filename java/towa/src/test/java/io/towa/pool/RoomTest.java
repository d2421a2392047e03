package io.towa.pool;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.towa.Durability;
import io.towa.PoolException;
import io.towa.medium.Nvm;
import io.towa.medium.SystemCalls;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.channels.FileChannel;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.Assumptions;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

/** A pool on an ext4 that is full to the last block: each store below the frontier succeeds, whatever folios the page cache has made. */
class RoomTest {
    private static final int MEBIBYTE = 1 << 20;
    private static final long CAPACITY = 256L * MEBIBYTE;

    @TempDir
    Path dir;

    private Path ext4;

    @BeforeEach
    void mount() throws Exception {
        ext4 = Files.createDirectory(dir.resolve("ext4"));
        Path image = dir.resolve("image");
        boolean there = run("truncate", "-s", "64M", image.toString())
            && run("mkfs.ext4", "-q", "-F", "-b", "1024", "-m", "0", image.toString())
            && run("mount", "-o", "loop", image.toString(), ext4.toString());
        if (!there) {
            System.out.println("SKIP: no ext4 on a loop device (needs root)");
        }
        Assumptions.assumeTrue(there);
    }

    @AfterEach
    void unmount() throws Exception {
        // Lazily: after a failure the pool is still mapped.
        run("umount", "-l", ext4.toString());
    }

    private static boolean run(String... command) throws Exception {
        try {
            Process p = new ProcessBuilder(command).redirectErrorStream(true).redirectOutput(ProcessBuilder.Redirect.DISCARD).start();
            return p.waitFor() == 0;
        } catch (IOException e) {
            return false;
        }
    }

    /** Another file takes what is free, but for so many bytes. */
    private void leave(String name, long bytes) throws Exception {
        try (FileChannel other = FileChannel.open(ext4.resolve(name), StandardOpenOption.CREATE, StandardOpenOption.WRITE)) {
            long free = Files.getFileStore(ext4).getUsableSpace();
            for (int turn = MEBIBYTE; free > bytes; free = Files.getFileStore(ext4).getUsableSpace()) {
                if (free - bytes < turn && turn > 1024) {
                    turn /= 2;
                } else {
                    other.write(ByteBuffer.allocate(turn), other.size());
                    other.force(true);
                }
            }
        } catch (IOException e) {
            // full
        }
    }

    private PoolFile open() {
        return new PoolFile(ext4.resolve("p"), CAPACITY, Durability.PROCESS);
    }

    @Test
    void noStoreBelowTheFrontierNeedsABlock() throws Exception {
        PoolFile pool = open();
        leave("first", 29 * MEBIBYTE + MEBIBYTE / 2);
        long frontier = MEBIBYTE;
        PoolException e = null;
        for (; e == null && frontier < CAPACITY; frontier += e == null ? MEBIBYTE : 0) {
            e = advance(pool, frontier);
        }
        assertEquals(PoolException.Reason.FULL, e.reason());
        frontier = Nvm.getLong(Layout.FRONTIER);
        assertTrue(frontier >= 16 * MEBIBYTE, frontier + " is as far as the pool may grow");
        pool.close();
        leave("second", 0);
        try (FileChannel f = FileChannel.open(ext4.resolve("p"))) {
            SystemCalls.dropCleanPages(f, 0, 0);
        }
        pool = open();
        // Reading in order makes folios as large as they come.
        long sum = 0;
        for (long at = 0; at < frontier; at += 4096) {
            sum += Nvm.getLong(at);
        }
        assertTrue(sum != 0);
        for (long at = frontier - 4096; at >= Layout.HEAP; at -= 4096) {
            Nvm.putLong(at, at);
        }
        pool.close();
    }

    private static PoolException advance(PoolFile pool, long to) {
        try {
            assertEquals(to, pool.advance(to, to));
            return null;
        } catch (PoolException e) {
            return e;
        }
    }

    /** What was refused takes no room: others find as much as there was. */
    @Test
    void aRefusalTakesNoRoom() throws Exception {
        PoolFile pool = open();
        leave("first", 29 * MEBIBYTE);
        long before = Files.getFileStore(ext4).getUsableSpace();
        assertThrows(PoolException.class, () -> pool.advance(100 * MEBIBYTE, 100 * MEBIBYTE));
        assertTrue(Files.getFileStore(ext4).getUsableSpace() > before - MEBIBYTE, "free before " + before);
        pool.close();
    }

    /** Commits write a word behind the heap: no growth fills it with zeros, and none that is refused punches it out. */
    @Test
    void theWordBehindTheHeapIsLeftAlone() throws Exception {
        // Its mapping is of the kind that faults.
        PoolFile pool = open();
        long capacity = 20 * MEBIBYTE;
        try (FileChannel f = FileChannel.open(ext4.resolve("q"), StandardOpenOption.CREATE, StandardOpenOption.READ, StandardOpenOption.WRITE)) {
            f.write(ByteBuffer.wrap(new byte[] {1, 2, 3, 4, 5, 6, 7, 8}), capacity);
            Room room = new Room("q", f, capacity);
            room.open(MEBIBYTE);
            leave("other", 4 * MEBIBYTE);
            assertEquals(PoolException.Reason.FULL, assertThrows(PoolException.class, () -> room.reach(capacity)).reason());
            assertEquals(0x0102030405060708L, word(f, capacity));
            Files.delete(ext4.resolve("other"));
            room.reach(capacity);
            assertEquals(0x0102030405060708L, word(f, capacity));
        }
        pool.close();
    }

    private static long word(FileChannel f, long at) throws IOException {
        ByteBuffer word = ByteBuffer.allocate(8);
        f.read(word, at);
        return word.getLong(0);
    }

    /** A file system, or a limit of the process, that allows no file so large: the message says what is too large. */
    @Test
    void aCapacityThatNoFileMayHave() {
        PoolException e = assertThrows(PoolException.class, () -> new PoolFile(ext4.resolve("p"), 8L << 40, Durability.PROCESS));
        assertTrue(e.getMessage().contains("a file of its capacity, " + (8L << 40) + " bytes"), e.getMessage());
    }
}
