package io.towa.pool;

import static org.junit.jupiter.api.Assertions.assertThrows;

import io.towa.Durability;
import io.towa.PoolException;
import io.towa.graph.Gate;
import io.towa.medium.DirtyPages;
import io.towa.medium.Nvm;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Random;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

/**
 * A program commits, its device fails now and then, it is killed at any step of a commit or of an opening, power is lost or not, and it opens the pool again: what
 * was acknowledged is there, whole, each time. The two files are {@link CachedFile}s; opening and commits are the library's own.
 */
class PowerRoundsTest {
    private static final int CAPACITY = 256 << 10;

    @TempDir
    Path dir;

    private PoolFile pool;
    private Random random;
    private CachedFile data;
    private CachedFile log;
    private boolean logThere;
    /** What the heap was at each commit since the last opening, and the first of these that must not be lost. */
    private final List<byte[]> states = new ArrayList<>();
    private int acknowledged;
    /** A fault of the program: of an opening's syncs of one of the files that with this number is left out. */
    private CachedFile faulty;
    private int leftOut = -1;

    @BeforeEach
    void open() {
        pool = new PoolFile(dir.resolve("p"), CAPACITY, Durability.POWER);
    }

    @AfterEach
    void close() {
        pool.close();
    }

    private void begin(long seed) throws Exception {
        random = new Random(seed);
        Path made = dir.resolve("made");
        Files.copy(dir.resolve("p"), made);
        Files.copy(dir.resolve("p.log"), dir.resolve("made.log"));
        data = new CachedFile(Files.readAllBytes(made), random);
        log = new CachedFile(Files.readAllBytes(dir.resolve("made.log")), random);
        Files.delete(made);
        Files.delete(dir.resolve("made.log"));
        logThere = true;
        states.clear();
        states.add(heap(data.content()));
        acknowledged = 0;
    }

    private static byte[] heap(byte[] file) {
        return Arrays.copyOfRange(file, (int) Layout.HEAP, CAPACITY);
    }

    private void rounds(int n) throws Exception {
        for (int i = 0; i < n; i++) {
            data.next();
            log.next();
            if (random.nextInt(3) == 0) {
                trouble(random.nextBoolean() ? data : log, 12);
            }
            if (leftOut >= 0) {
                faulty.forgetsIn = leftOut;
            }
            RedoLog redo = opened(i);
            if (redo != null) {
                data.next();
                log.next();
                work(redo);
            }
            data.kill();
            log.kill();
            if (random.nextInt(3) != 0) {
                data.cut();
                log.cut();
            }
        }
    }

    private void trouble(CachedFile file, int steps) {
        if (random.nextBoolean()) {
            file.killsIn = random.nextInt(steps);
        } else {
            file.failsIn = random.nextInt(3);
        }
    }

    private Superblock superblock;

    /** @return null if the opening failed, or was killed */
    private RedoLog opened(int round) {
        RedoLog redo;
        try {
            superblock = Superblock.read(data, "sim");
            Opening o = new Opening("sim", data, logThere ? log : null, superblock, Durability.POWER);
            o.settle(Durability.POWER, CAPACITY);
            redo = o.enterForCommits(() -> {
                logThere = true;
                return log;
            }, CAPACITY, random.nextLong() | 1, 1);
        } catch (IOException | CachedFile.Killed e) {
            return null;
        } catch (PoolException e) {
            throw new AssertionError("round " + round + ": " + e.getMessage(), e);
        }
        byte[] found = heap(data.content());
        int at = states.size() - 1;
        while (at >= acknowledged && !Arrays.equals(states.get(at), found)) {
            at--;
        }
        if (at < acknowledged) {
            throw new AssertionError("round " + round + ": neither what was acknowledged nor anything later, but " + was(found));
        }
        states.clear();
        states.add(found);
        acknowledged = 0;
        return redo;
    }

    private String was(byte[] found) {
        for (int i = 0; i < acknowledged; i++) {
            if (Arrays.equals(states.get(i), found)) {
                return "what was there " + (acknowledged - i) + " commits before";
            }
        }
        return "a mixture";
    }

    private void work(RedoLog redo) {
        Nvm.putBytes(Layout.HEAP, states.get(0));
        pool.dirty().take();
        Committer c = new Committer(pool, pool.dirty(), data, redo, Long.MAX_VALUE / 4);
        c.start();
        for (int n = random.nextInt(6); n >= 0 && !data.dead() && !log.dead(); n--) {
            store();
            states.add(heap(Nvm.getBytes(0, CAPACITY)));
            if (random.nextInt(3) == 0) {
                trouble(random.nextBoolean() ? data : log, 25);
            }
            try {
                c.sync();
                acknowledged = states.size() - 1;
            } catch (PoolException e) {
                // Told: what it was to have may be there or not.
            }
        }
        c.end();
        if (random.nextInt(4) == 0) {
            end(c);
        }
    }

    private void end(Committer c) {
        Gate.shut();
        try {
            states.add(heap(Nvm.getBytes(0, CAPACITY)));
            c.last();
            acknowledged = states.size() - 1;
            superblock.clean = true;
            superblock.write(data);
            if (random.nextBoolean()) {
                log.empty();
                logThere = false;
            }
        } catch (IOException | PoolException | CachedFile.Killed e) {
            // As if it had been killed.
        } finally {
            Gate.open();
        }
    }

    private void store() {
        for (int n = 1 + random.nextInt(40); n > 0; n--) {
            Nvm.putLong((long) (16 + random.nextInt(CAPACITY / DirtyPages.PAGE - 16)) * DirtyPages.PAGE + 8L * random.nextInt(512), random.nextLong());
        }
    }

    @Test
    void whatWasAcknowledgedIsThere() throws Exception {
        for (int seed = 1; seed <= 4; seed++) {
            begin(seed);
            try {
                rounds(250);
            } catch (AssertionError e) {
                throw new AssertionError("seed " + seed + ", " + e.getMessage(), e);
            }
        }
    }

    private void isFound(Runnable fault) {
        assertThrows(AssertionError.class, () -> {
            for (int seed = 11; seed <= 16; seed++) {
                begin(seed);
                fault.run();
                rounds(300);
            }
        });
        faulty = null;
        leftOut = -1;
    }

    /** What opening relies on it writes again: else it syncs pages that are clean, and the device does not have them. */
    @Test
    void whatIsWrittenAgainIsNeeded() {
        isFound(() -> log.keepsClean = true);
        isFound(() -> data.keepsClean = true);
    }

    @Test
    void eachSyncIsNeeded() {
        isFound(() -> log.forgets = true);
        isFound(() -> data.forgets = true);
        for (int n = 0; n < 5; n++) {
            int left = n;
            System.out.println("opening without its sync " + n);
            isFound(() -> {
                faulty = left < 2 ? log : data;
                leftOut = left < 2 ? left : left - 2;
            });
        }
    }
}
