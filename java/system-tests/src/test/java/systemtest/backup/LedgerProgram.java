package systemtest.backup;

import io.towa.Durability;
import io.towa.DurableRoot;
import io.towa.Towa;
import io.towa.TowaOptions;
import java.nio.LongBuffer;
import java.nio.channels.FileChannel;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.time.Duration;

/**
 * Makes entries in a ledger as fast as it can until it is killed, or checks the ledger of a pool.
 *
 * <pre>
 *   run   POOL process|power INTERVAL_MS THREADS BLOCKS   what is acknowledged goes to POOL.acked: entries, counts, calls that took over 1 ms, the longest
 *                                                         a file POOL.close ends it: the pool is closed
 *   check POOL process|power ENTRIES COUNTS
 * </pre>
 */
public final class LedgerProgram {
    @DurableRoot static Ledger ledger;
    private static LongBuffer acked;

    private LedgerProgram() {}

    public static void main(String[] args) throws Exception {
        Path pool = Path.of(args[1]);
        TowaOptions options = TowaOptions.DEFAULT.withDurability(Durability.valueOf(args[2].toUpperCase(java.util.Locale.ROOT))).withCapacity(1L << 30);
        if (args[0].equals("run")) {
            Towa.open(pool, options.withInterval(Duration.ofMillis(Long.parseLong(args[3]))));
            run(pool, args[2].equals("power"), Integer.parseInt(args[4]), Integer.parseInt(args[5]));
            return;
        }
        Towa.open(pool, options);
        String wrong = ledger == null ? "the ledger is gone" : ledger.wrong(Long.parseLong(args[3]), Long.parseLong(args[4]));
        String unlike = wrong == null ? after(pool) : wrong;
        Towa.close();
        System.out.println(unlike == null ? "RIGHT" : "WRONG: " + unlike);
    }

    /** The pool is one to work with. */
    private static String after(Path pool) {
        long before = ledger.total;
        ledger.enter(0);
        ledger.count();
        return Towa.verify().isEmpty() ? ledger.wrong(before + 1, 0) : "Towa.verify of " + pool + ": " + Towa.verify();
    }

    private static void run(Path pool, boolean power, int threads, int blocks) throws Exception {
        try (FileChannel file = FileChannel.open(Path.of(pool + ".acked"), StandardOpenOption.CREATE, StandardOpenOption.READ, StandardOpenOption.WRITE)) {
            acked = file.map(FileChannel.MapMode.READ_WRITE, 0, 64).asLongBuffer();
        }
        if (ledger == null) {
            ledger = new Ledger(threads, blocks);
            ledger.fill();
            Towa.sync();
        }
        for (int i = 0; i < threads; i++) {
            int thread = i;
            start(() -> enter(thread, power));
        }
        start(() -> count(power));
        if (power) {
            start(LedgerProgram::sync);
        }
        start(LedgerProgram::collect);
        System.out.println("running");
        Path close = Path.of(pool + ".close");
        while (!java.nio.file.Files.exists(close)) {
            Thread.sleep(5);
        }
        Towa.close();
        System.out.println("closed");
        System.exit(0);
    }

    private static void start(Runnable r) {
        Thread t = new Thread(r);
        t.setDaemon(true);
        t.start();
    }

    private static void enter(int thread, boolean power) {
        for (;;) {
            long start = System.nanoTime();
            long n = ledger.enter(thread);
            long took = System.nanoTime() - start;
            synchronized (LedgerProgram.class) {
                if (!power) {
                    acked.put(0, Math.max(acked.get(0), n));
                }
                acked.put(2, acked.get(2) + (took > 1_000_000 ? 1 : 0));
                acked.put(3, Math.max(acked.get(3), took));
            }
        }
    }

    private static void count(boolean power) {
        for (;;) {
            long n = ledger.count();
            if (!power) {
                acked.put(1, n);
            }
            if (n % 64 == 0) {
                Thread.yield();
            }
        }
    }

    /** The collector, far more often than it would come by itself. */
    private static void collect() {
        for (;;) {
            Towa.collect();
            java.util.concurrent.locks.LockSupport.parkNanos(200_000_000);
        }
    }

    private static void sync() {
        for (;;) {
            long entries;
            synchronized (ledger) {
                entries = ledger.total;
            }
            long counts = ledger.second.value;
            Towa.sync();
            acked.put(0, entries);
            acked.put(1, counts);
        }
    }
}
