package systemtest.backup;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.nio.LongBuffer;
import java.nio.channels.FileChannel;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.util.List;
import systemtest.harness.Machine;
import systemtest.harness.RustVerify;

/** A program that keeps a ledger in a pool, and backups of it. */
final class Ledgers implements AutoCloseable {
    final Path pool;
    final Machine program;
    private final LongBuffer acked;

    Ledgers(Path pool, String durability, int intervalMs, int blocks) throws Exception {
        this.pool = pool;
        program = Machine.start(List.of("-Xmx512m", "-XX:+UseSerialGC"), "systemtest.backup.LedgerProgram", "run", pool, durability, intervalMs, 2, blocks);
        program.expect("running");
        try (FileChannel file = FileChannel.open(Path.of(pool + ".acked"), StandardOpenOption.READ, StandardOpenOption.WRITE)) {
            acked = file.map(FileChannel.MapMode.READ_WRITE, 0, 64).asLongBuffer();
        }
        awaitEntries(2000);
    }

    void awaitEntries(long more) throws Exception {
        long wanted = entries() + more;
        for (long end = System.nanoTime() + 60_000_000_000L; entries() < wanted; Thread.sleep(1)) {
            assertTrue(System.nanoTime() < end, () -> entries() + " entries, and no more: " + program);
        }
    }

    long entries() {
        return acked.get(0);
    }

    long counts() {
        return acked.get(1);
    }

    /** Since the last call of this: calls that took longer than a millisecond, and the nanoseconds of the longest. */
    long[] slow() {
        long[] slow = {acked.get(2), acked.get(3)};
        acked.put(2, 0);
        acked.put(3, 0);
        return slow;
    }

    /** What a command of `towa` said, and its exit status. */
    record Said(int status, String text) {
        Said succeeded() {
            assertEquals(0, status, text);
            return this;
        }
    }

    static Process start(Path pool, Path copy) throws Exception {
        return new ProcessBuilder(RustVerify.program().toString(), "backup", "--json", pool.toString(), copy.toString()).redirectErrorStream(true).start();
    }

    static Said end(Process backup) throws Exception {
        String text = new String(backup.getInputStream().readAllBytes());
        return new Said(backup.waitFor(), text);
    }

    static Said backUp(Path pool, Path copy) throws Exception {
        return end(start(pool, copy));
    }

    /** The copy opens by itself, and all in it is of one moment, at which there was at least so much. It is removed. */
    static void assertHolds(Path copy, String durability, long entries, long counts) throws Exception {
        RustVerify.check(copy);
        check(copy, durability, entries, counts);
        Files.delete(copy);
    }

    static void check(Path pool, String durability, long entries, long counts) throws Exception {
        try (Machine m = Machine.start(List.of("-Xmx512m", "-XX:+UseSerialGC"), "systemtest.backup.LedgerProgram", "check", pool, durability, entries, counts)) {
            m.succeed();
            assertEquals("RIGHT", m.lines().get(m.lines().size() - 1), m::toString);
        }
    }

    @Override
    public void close() {
        program.close();
    }
}
