package systemtest.inside;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.towa.DurableRoot;
import io.towa.PoolException;
import io.towa.PoolException.Reason;
import io.towa.Towa;
import io.towa.TowaOptions;
import java.nio.file.Path;
import java.util.HashMap;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.TimeUnit;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

/** A pool, or a disk, that is full: the store that did not fit is refused and leaves nothing half done; the program goes on. */
class FullIT {
    @DurableRoot
    private static Map<Integer, byte[]> root;
    @DurableRoot
    private static Object other;

    @TempDir
    Path folder;

    @AfterEach
    void close() {
        Towa.close();
        root = null;
        other = null;
    }

    private static int fill(Map<Integer, byte[]> m, int bytes) {
        for (int i = 0;; i++) {
            try {
                m.put(i, new byte[bytes]);
            } catch (PoolException e) {
                assertEquals(Reason.FULL, e.reason(), e.getMessage());
                // The entry did not fit; or it did, and the table that was to grow for it did not: then it is there, whole.
                int more = m.containsKey(i) ? 1 : 0;
                assertEquals(i + more, m.size());
                return i + more;
            }
            assertTrue(i < 1_000_000, "never full");
        }
    }

    private void refusedAndGoesOn(Path file, TowaOptions options, Map<Integer, byte[]> m) {
        root = null;
        Towa.open(file, options);
        root = m;
        int n = fill(m, 1000);
        assertTrue(n > 50, n + " fitted");
        Pool.sound();
        // Room again: some go, and as many come.
        for (int round = 0; round < 3; round++) {
            for (int i = 0; i < n / 2; i++) {
                m.remove(i);
            }
            Towa.collect();
            for (int i = 0; i < n / 3; i++) {
                m.put(i, new byte[1000]);
            }
            for (int i = 0; i < n / 3; i++) {
                m.remove(i);
            }
            for (int i = 0; i < n / 2 - 10; i++) {
                m.put(i, new byte[900]);
            }
            Pool.sound();
        }
        int size = m.size();
        Towa.close();
        root = null;
        Towa.open(file);
        assertEquals(size, root.size());
        Pool.sound();
        Towa.close();
    }

    @Test
    void capacity() {
        refusedAndGoesOn(folder.resolve("hash"), TowaOptions.DEFAULT.withCapacity(2 << 20), new HashMap<>());
        refusedAndGoesOn(folder.resolve("tree"), TowaOptions.DEFAULT.withCapacity(2 << 20), new TreeMap<>());
        refusedAndGoesOn(folder.resolve("concurrent"), TowaOptions.DEFAULT.withCapacity(2 << 20), new ConcurrentHashMap<>());
    }

    @Test
    void aLargerCapacityLater() {
        Path file = folder.resolve("grows");
        Towa.open(file, TowaOptions.DEFAULT.withCapacity(1 << 20));
        root = new HashMap<>();
        int n = fill(root, 1000);
        Towa.close();
        root = null;
        Towa.open(file, TowaOptions.DEFAULT.withCapacity(4 << 20));
        assertEquals(n, root.size());
        for (int i = n; i < 2 * n; i++) {
            root.put(i, new byte[1000]);
        }
        Pool.sound();
    }

    @Test
    void oneThingTooBig() {
        Towa.open(folder.resolve("big"), TowaOptions.DEFAULT.withCapacity(2 << 20));
        PoolException e = assertThrows(PoolException.class, () -> other = new long[1 << 20]);
        assertEquals(Reason.FULL, e.reason());
        assertNull(other);
        other = new long[1000];
        Object[] holder = new Object[4];
        other = holder;
        // The small part of what was refused as a whole is not kept either.
        long objects = Towa.metrics().objects();
        assertThrows(PoolException.class, () -> holder[0] = new Object[] {"small", new byte[100], new byte[4 << 20]});
        assertNull(holder[0]);
        assertTrue(Towa.metrics().objects() <= objects, Towa.metrics() + " after " + objects);
        holder[0] = "fits";
        Pool.sound();
    }

    @Test
    void aSectionThatDoesNotFit() {
        Towa.open(folder.resolve("section"), TowaOptions.DEFAULT.withCapacity(2 << 20));
        root = new HashMap<>();
        for (int round = 0; round < 3; round++) {
            assertThrows(PoolException.class, () -> Towa.atomically(() -> fillAnew(root)));
            Pool.sound();
            root.clear();
            Towa.collect();
        }
        root.put(1, new byte[10]);
        Pool.sound();
    }

    private static void fillAnew(Map<Integer, byte[]> m) {
        for (int i = 0; i < 1_000_000; i++) {
            m.put(i, new byte[1000]);
        }
    }

    @Test
    void fileSystem() throws Exception {
        Path mount = mountSmall();
        if (mount == null) {
            return;
        }
        try {
            refusedAndGoesOn(mount.resolve("pool"), TowaOptions.DEFAULT.withCapacity(1 << 30), new HashMap<>());
        } finally {
            unmount(mount);
        }
    }

    /** A copy without the blocks of its zeros: opening makes them, or says that there is no room; no store meets the end of the disk. */
    @Test
    void aSparseCopy() throws Exception {
        Path pool = folder.resolve("whole");
        Towa.open(pool, TowaOptions.DEFAULT.withCapacity(64 << 20));
        root = new HashMap<>();
        root.put(1, new byte[8 << 20]);
        Towa.close();
        Path mount = mountSmall();
        if (mount == null) {
            return;
        }
        try {
            Path copy = mount.resolve("pool");
            copyWithoutZeros(pool, copy);
            PoolException e = assertThrows(PoolException.class, () -> Towa.open(copy, TowaOptions.DEFAULT));
            assertEquals(PoolException.Reason.FULL, e.reason(), e.toString());
            assertTrue(e.getMessage().contains("holes"), e.toString());
            assertTrue(run("mount", "-o", "remount,size=32m", mount.toString()));
            Towa.open(copy, TowaOptions.DEFAULT);
            assertTrue(java.nio.file.Files.getFileStore(mount).getUsableSpace() < 24 << 20, "the blocks of the large array are not there");
            byte[] large = root.get(1);
            assertEquals(8 << 20, large.length);
            java.util.Arrays.fill(large, (byte) 7);
            Pool.sound();
        } finally {
            unmount(mount);
        }
    }

    private static void copyWithoutZeros(Path from, Path to) throws Exception {
        byte[] zeros = new byte[4096];
        try (java.io.RandomAccessFile in = new java.io.RandomAccessFile(from.toFile(), "r"); java.io.RandomAccessFile out = new java.io.RandomAccessFile(to.toFile(), "rw")) {
            out.setLength(in.length());
            byte[] page = new byte[4096];
            // Beyond the used part there is nothing but holes.
            for (long at = 0; at < Math.min(in.length(), 16 << 20); at += 4096) {
                in.seek(at);
                in.readFully(page);
                if (!java.util.Arrays.equals(page, zeros)) {
                    out.seek(at);
                    out.write(page);
                }
            }
        }
    }

    /** A file system of 3 MiB; null: none may be mounted here. */
    private Path mountSmall() throws Exception {
        Path mount = folder.resolve("small");
        java.nio.file.Files.createDirectory(mount);
        if (run("mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", mount.toString())) {
            return mount;
        }
        System.out.println("SKIP: no small file system may be mounted here");
        return null;
    }

    private static void unmount(Path mount) throws Exception {
        Towa.close();
        run("umount", "-l", mount.toString());
    }

    private static boolean run(String... command) throws Exception {
        Process p = new ProcessBuilder(command).redirectErrorStream(true).start();
        return p.waitFor(10, TimeUnit.SECONDS) && p.exitValue() == 0;
    }
}
