package systemtest.inside;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.towa.DurableRoot;
import io.towa.PoolException;
import io.towa.PoolException.Reason;
import io.towa.Towa;
import io.towa.TowaException;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.channels.FileChannel;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.util.HashMap;
import java.util.Map;
import java.util.Random;
import java.util.zip.CRC32C;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

/** Files that are no pools, or damaged ones: refused by name and reason, and left as they were. */
class BadFilesIT {
    @DurableRoot
    private static Map<String, Object> root;
    private static Object pass = "as the program set it";

    @TempDir
    Path folder;

    @AfterEach
    void close() {
        Towa.close();
        root = null;
    }

    /** A pool with some objects in it, closed. */
    private Path pool() {
        Path file = folder.resolve("good.towa");
        root = null;
        Towa.open(file, Pool.SMALL);
        root = new HashMap<>();
        for (int i = 0; i < 2000; i++) {
            root.put("key " + i, new int[] {i, i});
        }
        Towa.close();
        root = null;
        return file;
    }

    private static void patch(Path file, long at, byte[] bytes) throws Exception {
        try (FileChannel c = FileChannel.open(file, StandardOpenOption.WRITE)) {
            c.write(ByteBuffer.wrap(bytes), at);
        }
    }

    private static byte[] at(Path file, long at, int n) throws Exception {
        try (FileChannel c = FileChannel.open(file)) {
            ByteBuffer b = ByteBuffer.allocate(n);
            c.read(b, at);
            return b.array();
        }
    }

    /** Opening changes nothing in the file. */
    private static void refusedAsItWas(Path file, Reason reason, String... words) throws Exception {
        byte[] before = Files.readAllBytes(file);
        Pool.refused(file, reason, words);
        assertArrayEquals(before, Files.readAllBytes(file), "the file was changed");
    }

    @Test
    void anotherKind() throws Exception {
        Path text = Files.writeString(folder.resolve("letter.txt"), "Dear reader,\n".repeat(20_000));
        refusedAsItWas(text, Reason.FOREIGN, "not a Towa pool");
        Path few = Files.writeString(folder.resolve("few"), "x");
        refusedAsItWas(few, Reason.FOREIGN, "not a Towa pool");
        assertThrows(PoolException.class, () -> Towa.holdsData(text));
    }

    @Test
    void aDirectory() {
        Pool.refused(folder, Reason.FOREIGN, "not a file");
    }

    @Test
    void anEmptyFileIsMade() throws Exception {
        Path empty = Files.createFile(folder.resolve("empty"));
        assertTrue(!Towa.holdsData(empty));
        Towa.open(empty, Pool.SMALL);
        root = new HashMap<>(Map.of("a", 1));
        Pool.sound();
        Towa.close();
        assertTrue(Towa.holdsData(empty));
    }

    @Test
    void whereNothingCanBeMade() {
        Pool.refused(Path.of("/proc/pool.towa"), Reason.IO, "/proc/pool.towa");
        Pool.refused(folder.resolve("no/such/folder/pool.towa"), Reason.IO);
    }

    @Test
    void aFileThatCannotBeWritten() throws Exception {
        // The kernel lets nobody write to this one, root included.
        Pool.refused(Path.of("/sys/kernel/notes"), Reason.IO);
        Path file = pool();
        file.toFile().setWritable(false);
        if (Files.isWritable(file)) {
            System.out.println("SKIP: this user may write to read-only files");
        } else {
            refusedAsItWas(file, Reason.IO, "good.towa");
        }
        file.toFile().setWritable(true);
    }

    @Test
    void truncated() throws Exception {
        for (long size : new long[] {70, 4096, 8192, 9000, 65536, 69632, 100_000}) {
            Path file = pool();
            try (FileChannel c = FileChannel.open(file, StandardOpenOption.WRITE)) {
                assertTrue(c.size() > size);
                c.truncate(size);
            }
            refusedAsItWas(file, size < 256 ? Reason.FOREIGN : Reason.DAMAGED);
            Files.delete(file);
        }
    }

    @Test
    void oneSuperblockIsEnough() throws Exception {
        for (int slot = 0; slot < 2; slot++) {
            Path file = pool();
            patch(file, 4096L * slot + 40, new byte[] {99});
            Towa.open(file);
            // The older of the two says nothing of the objects.
            assertEquals(2000, root.size());
            Pool.sound();
            Towa.close();
            root = null;
            Files.delete(file);
        }
    }

    @Test
    void bothSuperblocksFlipped() throws Exception {
        Path file = pool();
        patch(file, 33, new byte[] {99});
        patch(file, 4096 + 33, new byte[] {99});
        refusedAsItWas(file, Reason.DAMAGED, "both superblocks");
    }

    @Test
    void newer() throws Exception {
        Path file = pool();
        for (int slot = 0; slot < 2; slot++) {
            ByteBuffer b = ByteBuffer.wrap(at(file, 4096L * slot, 256)).order(ByteOrder.LITTLE_ENDIAN);
            b.putInt(8, 2);
            CRC32C crc = new CRC32C();
            crc.update(b.array(), 0, 248);
            b.putLong(248, crc.getValue());
            patch(file, 4096L * slot, b.array());
        }
        refusedAsItWas(file, Reason.NEWER, "newer", "format 2");
    }

    @Test
    void wordsOutOfRange() throws Exception {
        byte[] far = ByteBuffer.allocate(8).order(ByteOrder.LITTLE_ENDIAN).putLong(0, 1L << 40 | 0x1000).array();
        for (int word : new int[] {0, 24, 32, 40}) {
            Path file = pool();
            patch(file, 8192 + word, far);
            Pool.refused(file, Reason.DAMAGED);
            Files.delete(file);
        }
    }

    /** Whatever byte is flipped: the pool is refused as damaged, or opens with its replicas agreeing with what it made of them; nothing else is thrown. */
    @Test
    void anyByteFlipped() throws Exception {
        long seed = systemtest.harness.Rounds.seed("flips");
        Random random = new Random(seed);
        Path good = pool();
        int refused = 0;
        for (int round = 0; round < 25; round++) {
            Path file = folder.resolve("flipped.towa");
            Files.copy(good, file);
            // The records of classes and roots lie at the front of the heap: meet them more often.
            long at = 65536 + random.nextInt(random.nextBoolean() ? 4096 : 150_000);
            byte old = at(file, at, 1)[0];
            patch(file, at, new byte[] {(byte) (old ^ 1 << random.nextInt(8))});
            try {
                Towa.open(file);
                Pool.sound();
            } catch (PoolException e) {
                assertTrue(e.reason() == Reason.DAMAGED || e.reason() == Reason.CHANGED_CLASS, "round " + round + ", byte " + at + ": " + e);
                refused++;
            } catch (RuntimeException | Error e) {
                throw new AssertionError("seed " + seed + ", round " + round + ", byte " + at, e);
            } finally {
                Towa.close();
                root = null;
                Files.delete(file);
            }
        }
        System.out.println("flips: " + refused + " of 25 refused");
    }

    /** A pool that names a static field which this program did not mark: it is not set. */
    @Test
    void aFieldThatIsNoRoot() throws Exception {
        Path file = pool();
        byte[] all = at(file, 0, 1 << 20);
        ByteBuffer b = ByteBuffer.wrap(all).order(ByteOrder.LITTLE_ENDIAN);
        int record = (int) b.getLong(8224);
        int bytes = b.getInt(record + 12);
        String text = new String(all, record, bytes, java.nio.charset.StandardCharsets.ISO_8859_1);
        int field = record + text.indexOf("\4\0\0\0root") + 4;
        patch(file, field, "pass".getBytes(java.nio.charset.StandardCharsets.US_ASCII));
        CRC32C crc = new CRC32C();
        crc.update(at(file, record + 32, bytes - 32));
        patch(file, record + 16, ByteBuffer.allocate(4).order(ByteOrder.LITTLE_ENDIAN).putInt(0, (int) crc.getValue()).array());
        Towa.open(file);
        assertEquals("as the program set it", pass);
    }

    @Test
    void openTwice() {
        Path file = folder.resolve("twice.towa");
        Towa.open(file, Pool.SMALL);
        PoolException e = assertThrows(PoolException.class, () -> Towa.open(file));
        assertEquals(Reason.BUSY, e.reason());
        Pool.says(e, "twice.towa", "close it first");
        PoolException other = assertThrows(PoolException.class, () -> Towa.open(folder.resolve("other.towa")));
        assertEquals(Reason.BUSY, other.reason());
        assertTrue(!Files.exists(folder.resolve("other.towa")), "a file was made");
        root = new HashMap<>(Map.of("still", "at work"));
        Pool.sound();
    }

    @Test
    void withoutAPool() {
        for (Runnable r : new Runnable[] {Towa::sync, Towa::verify, Towa::collect, Towa::guarantee, () -> Towa.atomically(() -> { })}) {
            Pool.says(assertThrows(TowaException.class, r::run), "no pool is open");
        }
        Towa.close();
        assertTrue(!Towa.isDurable(new Object()));
    }
}
