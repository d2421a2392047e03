package io.towa.pool;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;

import io.towa.Durability;
import io.towa.PoolException;
import io.towa.TowaOptions;
import io.towa.medium.Nvm;
import io.towa.medium.SystemCalls;
import java.nio.ByteBuffer;
import java.nio.channels.FileChannel;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.time.Duration;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.Assumptions;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

/**
 * A pool on an ext4 whose device fails for a while: the device is a sparse file in a memory file system that is full then. What the device has shows when the
 * pages leave the cache.
 */
class FailingDeviceTest {
    private static final TowaOptions RARELY = TowaOptions.DEFAULT.withInterval(Duration.ofHours(1));
    private static final int MEBIBYTE = 1 << 20;

    @TempDir
    Path dir;

    private Path memory;
    private Path ext4;

    @BeforeEach
    void mount() throws Exception {
        memory = Files.createDirectory(dir.resolve("memory"));
        ext4 = Files.createDirectory(dir.resolve("ext4"));
        boolean there = run("mount", "-t", "tmpfs", "-o", "size=48m", "none", memory.toString());
        Path image = memory.resolve("image");
        there = there && run("truncate", "-s", "128M", image.toString()) && run("mkfs.ext4", "-q", "-F", "-E", "lazy_itable_init=0,lazy_journal_init=0", "-J", "size=4",
            image.toString()) && run("mount", "-o", "loop", image.toString(), ext4.toString());
        if (!there) {
            System.out.println("SKIP: no ext4 on a loop device (needs root)");
        }
        Assumptions.assumeTrue(there);
    }

    @AfterEach
    void unmount() throws Exception {
        // Lazily: after a failure the pool is still mapped.
        run("umount", "-l", ext4.toString());
        run("umount", "-l", memory.toString());
    }

    private static boolean run(String... command) throws Exception {
        try {
            return new ProcessBuilder(command).redirectErrorStream(true).redirectOutput(ProcessBuilder.Redirect.DISCARD).start().waitFor() == 0;
        } catch (java.io.IOException e) {
            return false;
        }
    }

    /** Blocks that the device does not have yet it cannot write from now on. */
    private void fail() throws Exception {
        try (FileChannel ballast = FileChannel.open(memory.resolve("ballast"), StandardOpenOption.CREATE, StandardOpenOption.WRITE)) {
            ByteBuffer b = ByteBuffer.allocate(4096);
            while (ballast.write(b.clear()) > 0) {
            }
        } catch (java.io.IOException e) {
            // full
        }
    }

    private PoolFile open() {
        return new PoolFile(ext4.resolve("p"), 8 * MEBIBYTE, Durability.POWER);
    }

    private static void kill(PoolFile p, Committer c) {
        c.end();
        p.abandon();
    }

    private void dropPages() throws Exception {
        for (String name : new String[] {"p", "p.log"}) {
            try (FileChannel f = FileChannel.open(ext4.resolve(name))) {
                SystemCalls.dropCleanPages(f, 0, 0);
            }
        }
    }

    private static void store(int from, long value) {
        for (long at = from; at < from + 2 * MEBIBYTE; at += 4096) {
            Nvm.putLong(at, value);
        }
    }

    private static void check(int from, long value) {
        for (long at = from; at < from + 2 * MEBIBYTE; at += 4096) {
            assertEquals(value, Nvm.getLong(at), "at " + at);
        }
    }

    private PoolFile pool;
    private Committer committer;

    /** A commit whose log is synced, to blocks that the device had, and whose pages are not. */
    private void commitThatFails() throws Exception {
        pool = open();
        pool.advance(Layout.HEAP, 6 * MEBIBYTE);
        committer = Committer.start(pool, RARELY);
        store(MEBIBYTE, 1);
        committer.sync();
        fail();
        store(3 * MEBIBYTE, 2);
        assertThrows(PoolException.class, committer::sync);
        Files.delete(memory.resolve("ballast"));
    }

    @Test
    void whatAProgramThatGoesOnWasTold() throws Exception {
        commitThatFails();
        boolean told = true;
        for (int i = 0; i < 3; i++) {
            store(MEBIBYTE, 3);
            try {
                committer.sync();
            } catch (PoolException e) {
                told = false;
            }
        }
        kill(pool, committer);
        dropPages();
        pool = open();
        check(3 * MEBIBYTE, 2);
        check(MEBIBYTE, told ? 3 : 1);
        pool.close();
    }

    @Test
    void whatTheNextOpeningFinds() throws Exception {
        commitThatFails();
        kill(pool, committer);
        pool = open();
        check(3 * MEBIBYTE, 2);
        committer = Committer.start(pool, RARELY);
        store(MEBIBYTE, 3);
        committer.sync();
        kill(pool, committer);
        dropPages();
        pool = open();
        check(3 * MEBIBYTE, 2);
        check(MEBIBYTE, 3);
        pool.close();
    }
}
