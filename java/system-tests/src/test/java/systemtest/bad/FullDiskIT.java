package systemtest.bad;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNotEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.nio.ByteBuffer;
import java.nio.channels.FileChannel;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.util.ArrayList;
import java.util.List;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.Assumptions;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;
import systemtest.harness.Machine;

/**
 * File systems that fill up, of each kind that can be made here: a store is refused, and none gets a signal (which the JVM makes an
 * {@code InternalError}).
 */
class FullDiskIT {
    @TempDir
    Path folder;

    private Path mount;

    @BeforeEach
    void makeMountPoint() throws Exception {
        mount = Files.createDirectory(folder.resolve("mount"));
    }

    @AfterEach
    void unmount() throws Exception {
        run("umount", "-l", mount.toString());
    }

    private static boolean run(String... command) throws Exception {
        try {
            Process p = new ProcessBuilder(command).redirectErrorStream(true).redirectOutput(ProcessBuilder.Redirect.DISCARD).start();
            return p.waitFor() == 0;
        } catch (java.io.IOException e) {
            return false;
        }
    }

    /** Makes and mounts one of {@code megabytes}; else the test ends here, and says so. */
    private void make(String options, int megabytes, String... mkfs) throws Exception {
        Path image = folder.resolve("image");
        List<String> command = new ArrayList<>(List.of(mkfs));
        command.add(image.toString());
        boolean there = run("truncate", "-s", megabytes + "M", image.toString()) && run(command.toArray(new String[0]))
            && run("mount", "-o", "loop" + options, image.toString(), mount.toString());
        if (!there) {
            System.out.println("SKIP: no " + mkfs[0] + " on a loop device (needs root, and that program)");
        }
        Assumptions.assumeTrue(there);
    }

    private Machine program(Path pool, String durability, int bytes) throws Exception {
        return Machine.start(List.of("-XX:+UseSerialGC", "-Xmx512m"), "systemtest.bad.FullDisk", pool, durability, bytes);
    }

    private void refused(Path pool, String durability, int bytes) throws Exception {
        try (Machine m = program(pool, durability, bytes)) {
            m.succeed();
            assertEquals(3, m.lines().stream().filter(l -> l.startsWith("refused at ")).count(), m::toString);
        }
    }

    private void bothModes() throws Exception {
        refused(mount.resolve("pool"), "POWER", 100_000);
        assertTrue(run("rm", "-f", mount.resolve("pool").toString(), mount.resolve("pool.log").toString()));
        refused(mount.resolve("pool"), "PROCESS", 3000);
    }

    @Test
    void ext4OfSmallBlocks() throws Exception {
        make("", 60, "mkfs.ext4", "-q", "-F", "-b", "1024");
        bothModes();
        // Once more, with what that left on the full disk.
        refused(mount.resolve("pool"), "PROCESS", 100_000);
    }

    @Test
    void ext4() throws Exception {
        make("", 60, "mkfs.ext4", "-q", "-F", "-b", "4096", "-m", "0");
        bothModes();
    }

    @Test
    void ext4WithoutDelayedAllocation() throws Exception {
        make(",nodelalloc,dioread_lock", 60, "mkfs.ext4", "-q", "-F", "-b", "1024");
        bothModes();
    }

    @Test
    void ext2() throws Exception {
        make("", 60, "mkfs.ext2", "-q", "-F");
        bothModes();
    }

    @Test
    void xfs() throws Exception {
        make("", 350, "mkfs.xfs", "-q");
        bothModes();
        Path pool = mount.resolve("pool");
        Path copy = mount.resolve("copy");
        assertTrue(run("cp", "--reflink=always", pool.toString(), copy.toString()), "a copy that shares its blocks");
        // The disk has no room for others: the opening says so, not a store.
        try (Machine m = program(pool, "PROCESS", 3000)) {
            assertNotEquals(0, m.exit(), m::toString);
            assertTrue(m.lines().stream().anyMatch(l -> l.contains("PoolException") && l.contains("shares blocks with a")), m::toString);
        }
        Files.delete(copy);
        refused(pool, "PROCESS", 3000);
    }

    @Test
    void btrfs() throws Exception {
        make("", 120, "mkfs.btrfs", "-q");
        bothModes();
    }

    /** Others fill the disk while the pool is open: the blocks that it has allocated ahead are its own. */
    @Test
    void othersFillTheDisk() throws Exception {
        make("", 60, "mkfs.ext4", "-q", "-F", "-b", "1024");
        Path pool = mount.resolve("pool");
        refused(pool, "PROCESS", 3000);
        try (FileChannel ballast = FileChannel.open(mount.resolve("ballast"), StandardOpenOption.CREATE, StandardOpenOption.WRITE)) {
            while (ballast.write(ByteBuffer.allocate(1024)) > 0) {
            }
        } catch (java.io.IOException e) {
            // full, to the last block
        }
        refused(pool, "PROCESS", 3000);
    }
}
