package io.towa.pool;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.towa.Durability;
import io.towa.PoolException;
import io.towa.medium.DirtyPages;
import io.towa.medium.Nvm;
import java.io.IOException;
import java.nio.ByteBuffer;
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
 * Whatever of the commits' writes a loss of power leaves, opening finds the last commit that was done, or the one that was on its way: whole.
 *
 * <p>Log and file are written through {@link Recorded}, which keeps the order of writes and syncs. An image has all that was synced; of every
 * sector written since, one of the versions it had.
 */
class CommitImagesTest {
    private static final int CAPACITY = 384 << 10;
    private static final int SECTOR = 512;

    @TempDir
    Path dir;

    /** One write, sync (bytes null, length -1) or cut (bytes null, length the size). */
    private record Step(int file, long at, byte[] bytes, long length, int done) {}

    /** A file in memory whose operations are noted, and may fail. */
    private static final class Recorded implements Disk {
        final int number;
        final List<Step> trace;
        final int[] done;
        byte[] content;
        int size;
        /** Writes until one fails; negative: none. */
        int failsIn = -1;
        /** Syncs do nothing: such a disk must be found out. */
        boolean forgets;

        Recorded(int number, List<Step> trace, int[] done, byte[] content) {
            this.number = number;
            this.trace = trace;
            this.done = done;
            this.content = content;
            size = content.length;
        }

        private void step(long at, byte[] bytes, long length) throws IOException {
            if (bytes != null && failsIn >= 0 && failsIn-- == 0) {
                // A part of it got there.
                byte[] part = Arrays.copyOf(bytes, bytes.length / 2);
                put(at, part);
                trace.add(new Step(number, at, part, 0, done[0]));
                throw new IOException("No space left on device");
            }
            if (bytes != null) {
                put(at, bytes);
            } else if (length >= 0) {
                size = (int) length;
            }
            trace.add(new Step(number, at, bytes, length, done[0]));
        }

        void put(long at, byte[] bytes) {
            if (at + bytes.length > content.length) {
                content = Arrays.copyOf(content, 2 * (int) (at + bytes.length));
            }
            if (at > size) {
                Arrays.fill(content, size, (int) at, (byte) 0);
            }
            System.arraycopy(bytes, 0, content, (int) at, bytes.length);
            size = (int) Math.max(size, at + bytes.length);
        }

        @Override
        public boolean read(ByteBuffer into, long at) {
            int n = (int) Math.min(into.remaining(), Math.max(0, size - at));
            into.put(content, (int) at, n);
            return !into.hasRemaining();
        }

        @Override
        public void write(ByteBuffer from, long at) throws IOException {
            byte[] bytes = new byte[from.remaining()];
            from.get(bytes);
            step(at, bytes, 0);
        }

        @Override
        public void force() throws IOException {
            if (forgets) {
                return;
            }
            step(0, null, -1);
        }

        @Override
        public void evict(long from, long bytes) {}

        @Override
        public void truncate(long to) throws IOException {
            step(0, null, to);
        }

        @Override
        public long size() {
            return size;
        }
    }

    private PoolFile pool;
    private List<Step> trace;
    private int[] done;
    private Recorded data;
    private Recorded log;
    private final List<byte[]> states = new ArrayList<>();

    @BeforeEach
    void open() throws Exception {
        pool = new PoolFile(dir.resolve("p"), CAPACITY, Durability.POWER);
        trace = new ArrayList<>();
        done = new int[1];
        data = new Recorded(0, trace, done, Files.readAllBytes(dir.resolve("p")));
        log = new Recorded(1, trace, done, Files.readAllBytes(dir.resolve("p.log")));
    }

    private static byte[] heap(byte[] file) {
        return Arrays.copyOfRange(file, (int) Layout.HEAP, CAPACITY);
    }

    @AfterEach
    void close() {
        pool.close();
    }

    private void store(Random random) {
        int n = 1 + random.nextInt(120);
        int around = random.nextInt(70);
        for (int i = 0; i < n; i++) {
            long page = 16 + (around + (random.nextBoolean() ? i : random.nextInt(70))) % 80;
            Nvm.putLong(page * DirtyPages.PAGE + 8L * random.nextInt(512), random.nextLong());
        }
    }

    @Test
    void everyImageHoldsAWholeCommit() throws Exception {
        long images = 0;
        for (int seed = 1; seed <= 8; seed++) {
            images += run(new Random(seed), seed, false);
        }
        System.out.println(images + " images of commits");
    }

    @Test
    void alsoIfTheDiskIsFullAtTimes() throws Exception {
        long images = 0;
        for (int seed = 101; seed <= 108; seed++) {
            images += run(new Random(seed), seed, true);
        }
        System.out.println(images + " images of commits on a disk that is full at times");
    }

    @Test
    void eachSyncIsNeeded() {
        log.forgets = true;
        assertThrows(AssertionError.class, () -> run(new Random(1), 1, false));
        log.forgets = false;
        data.forgets = true;
        assertThrows(AssertionError.class, () -> {
            for (int seed = 2; seed < 8; seed++) {
                run(new Random(seed), seed, false);
            }
        });
    }

    private long run(Random random, int seed, boolean faults) throws Exception {
        trace.clear();
        states.clear();
        done[0] = 0;
        byte[] from = data.content.clone();
        byte[] logFrom = Arrays.copyOf(log.content, log.size);
        states.add(heap(Nvm.getBytes(0, CAPACITY)));
        RedoLog redo = new RedoLog(log, pool.superblock().uuidHigh, pool.superblock().uuidLow);
        assertEquals(RedoLog.State.OURS, redo.read());
        Committer c = new Committer(pool, pool.dirty(), data, redo, Long.MAX_VALUE / 4);
        c.start();
        for (int n = 1; n <= 8; n++) {
            store(random);
            states.add(heap(Nvm.getBytes(0, CAPACITY)));
            Recorded bad = random.nextInt(4) == 0 ? data : log;
            if (faults && random.nextInt(3) != 0) {
                bad.failsIn = random.nextInt(3);
            }
            try {
                c.sync();
                done[0] = n;
            } catch (PoolException e) {
                assertEquals(PoolException.Reason.FULL, e.reason());
                bad.failsIn = -1;
                if (random.nextBoolean()) {
                    continue;
                }
                c.sync();
                done[0] = n;
            }
            bad.failsIn = -1;
        }
        c.sync();
        done[0] = 8;
        c.end();
        assertArrayEquals(states.get(8), heap(data.content));
        long images = 0;
        for (int i = 0; i <= trace.size(); i++) {
            for (int k = 0; k < 6; k++) {
                judge(from, logFrom, i, random, k, "seed " + seed + ", step " + i + " of " + trace.size() + ", image " + k);
                images++;
            }
        }
        return images;
    }

    /** What the first {@code steps} may have left of a file. */
    private Recorded image(int file, byte[] start, int steps, Random random, int how) {
        Recorded f = new Recorded(file, new ArrayList<>(), new int[1], start.clone());
        List<Step> open = new ArrayList<>();
        for (int i = 0; i < steps; i++) {
            Step s = trace.get(i);
            if (s.file != file) {
                continue;
            }
            open.add(s);
            if (s.bytes == null && s.length == -1) {
                for (Step o : open) {
                    apply(f, o, random, 0);
                }
                open.clear();
            }
        }
        for (Step o : open) {
            apply(f, o, random, how);
        }
        return f;
    }

    /** how 0: all of it; 1: nothing; else some sectors. */
    private static void apply(Recorded f, Step s, Random random, int how) {
        if (s.bytes == null) {
            if (s.length >= 0 && (how == 0 || how > 1 && random.nextBoolean())) {
                f.size = (int) s.length;
            }
            return;
        }
        for (int at = 0; at < s.bytes.length; at += SECTOR) {
            if (how == 0 || how > 1 && random.nextInt(how) != 0) {
                f.put(s.at + at, Arrays.copyOfRange(s.bytes, at, Math.min(s.bytes.length, at + SECTOR)));
            }
        }
    }

    private void judge(byte[] from, byte[] logFrom, int steps, Random random, int how, String where) throws IOException {
        Recorded d = image(0, from, steps, random, how);
        Recorded l = image(1, logFrom, steps, random, random.nextBoolean() ? how : random.nextInt(12));
        byte[] before = Arrays.copyOf(d.content, d.size);
        open(d, l);
        if (random.nextBoolean()) {
            // Opening is broken off, and begun again.
            Recorded again = new Recorded(0, new ArrayList<>(), new int[1], before);
            int stop = random.nextInt(d.trace.size());
            for (int i = 0; i < stop; i++) {
                apply(again, d.trace.get(i), random, 2);
            }
            d = again;
            open(d, l);
        }
        int last = steps == 0 ? 0 : trace.get(steps - 1).done;
        boolean found = false;
        // A commit that failed may have been whole all the same.
        for (int n = last; n < states.size() && !found; n++) {
            found = Arrays.equals(states.get(n), heap(d.content));
        }
        assertTrue(found, where + ": neither commit " + last + " nor one after it");
    }

    private static void open(Recorded d, Recorded l) throws IOException {
        try {
            new Opening("p", d, l, Opening.superblock("p", d, l, CAPACITY), Durability.POWER).settle(Durability.POWER, CAPACITY);
        } catch (PoolException e) {
            throw new AssertionError(e.getMessage(), e);
        }
    }
}
