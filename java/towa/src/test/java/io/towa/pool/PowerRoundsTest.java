package io.towa.pool;

import static org.junit.jupiter.api.Assertions.assertNotNull;
import static org.junit.jupiter.api.Assertions.assertThrows;

import io.towa.Durability;
import io.towa.PoolException;
import io.towa.graph.Gate;
import io.towa.medium.DirtyPages;
import io.towa.medium.Nvm;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
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
    private static final int ROUNDS = 1800;

    @TempDir
    Path dir;

    private PoolFile pool;
    private Random random;
    private CachedFile data;
    private CachedFile log;
    private boolean logThere;
    private boolean ext4;
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
        data = new CachedFile(Files.readAllBytes(made), ext4, random);
        log = new CachedFile(Files.readAllBytes(dir.resolve("made.log")), ext4, random);
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
        switch (random.nextInt(4)) {
            case 0 -> file.failsIn = random.nextInt(3);
            case 1 -> {
                file.failsBetween = random.nextInt(steps);
                file.killsIn = random.nextBoolean() ? file.failsBetween + random.nextInt(steps) : -1;
            }
            default -> file.killsIn = random.nextInt(steps);
        }
    }

    private Superblock superblock;

    /** @return null if the opening failed, or was killed */
    private RedoLog opened(int round) {
        RedoLog redo;
        try {
            redo = enter(CAPACITY);
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

    private RedoLog enter(int capacity) throws IOException {
        superblock = Opening.superblock("sim", data, logThere ? log : null, capacity);
        Opening o = new Opening("sim", data, logThere ? log : null, superblock, Durability.POWER);
        o.settle(Durability.POWER, capacity);
        return o.enterForCommits(() -> {
            logThere = true;
            return log;
        }, capacity, random.nextLong() | 1, 1);
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
        for (int kind = 0; kind < 2; kind++) {
            ext4 = kind == 1;
            for (int seed = 1; seed <= seeds(); seed++) {
                begin(seed);
                try {
                    rounds(ROUNDS / seeds());
                } catch (AssertionError e) {
                    throw new AssertionError("seed " + seed + (ext4 ? " on ext4, " : ", ") + e.getMessage(), e);
                }
            }
        }
    }

    /** On ext4 the files are begun often: their pages are written for the first time only once. */
    private int seeds() {
        return ext4 ? ROUNDS / 3 : 6;
    }

    private void isFound(Runnable fault) {
        assertThrows(AssertionError.class, () -> {
            for (int seed = 101; seed <= 100 + seeds(); seed++) {
                begin(seed);
                fault.run();
                rounds(ROUNDS / seeds());
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

    /** Of both files: what was written again through pages that a failed write had left would read as zeros. */
    @Test
    void eachEvictionIsNeeded() {
        ext4 = true;
        isFound(() -> log.keepsCached = true);
        isFound(() -> data.keepsCached = true);
    }

    /** A pool of {@code PROCESS} whose sync failed, and was told, has all that its process stored when it is opened for {@code POWER}, and then the power goes. */
    @Test
    void whatAFailedSyncLeftIsWrittenAgain() throws Exception {
        for (int seed = 21; seed <= 40; seed++) {
            ext4 = seed % 2 == 0;
            begin(seed);
            superblock = Superblock.read(data, "sim");
            superblock.durability = Durability.PROCESS;
            superblock.write(data);
            for (int page = 16; page < CAPACITY / DirtyPages.PAGE; page++) {
                data.write(ByteBuffer.allocate(8).putLong(0, random.nextLong() | 1), page * DirtyPages.PAGE);
            }
            data.write(ByteBuffer.allocate(8).order(ByteOrder.LITTLE_ENDIAN).putLong(0, CAPACITY), Layout.FRONTIER);
            data.failsIn = 0;
            data.ample = true;
            assertThrows(IOException.class, data::force);
            states.set(0, heap(data.content()));
            assertNotNull(opened(0));
            data.cut();
            log.cut();
            assertNotNull(opened(1));
        }
    }

    /** The number behind a heap that grows is written to a block that the device did not have, though the pool was closed. */
    @Test
    void aSyncFailsWhileTheHeapGrows() throws Exception {
        ext4 = true;
        for (int seed = 41; seed <= 60; seed++) {
            begin(seed);
            data.ample = true;
            Committer c = new Committer(pool, pool.dirty(), data, enter(CAPACITY), Long.MAX_VALUE / 4);
            c.start();
            store();
            c.sync();
            c.end();
            superblock.clean = true;
            superblock.write(data);
            // Of the reload, or of what is written after it.
            data.failsIn = seed % 2;
            assertThrows(IOException.class, () -> enter(2 * CAPACITY));
            enter(2 * CAPACITY);
            data.cut();
            log.cut();
            enter(2 * CAPACITY);
        }
    }

    @Test
    void eachSyncIsNeeded() {
        isFound(() -> log.forgets = true);
        isFound(() -> data.forgets = true);
        for (int n = 0; n < 7; n++) {
            int left = n;
            // The first one of each file is of its reload.
            ext4 = left == 0 || left == 3;
            System.out.println("opening without its sync " + n);
            isFound(() -> {
                faulty = left < 3 ? log : data;
                leftOut = left < 3 ? left : left - 3;
            });
        }
    }
}
