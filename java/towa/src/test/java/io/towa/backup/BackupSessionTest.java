package io.towa.backup;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTimeoutPreemptively;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.towa.Durability;
import io.towa.TowaOptions;
import io.towa.graph.Gate;
import io.towa.medium.Nvm;
import io.towa.pool.Committer;
import io.towa.pool.PoolFile;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.attribute.PosixFilePermissions;
import java.time.Duration;
import java.util.Set;
import java.util.concurrent.locks.LockSupport;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.io.TempDir;

/** What a program does with tools that are right, silent, slow, or talk rubbish. */
@Timeout(60)
class BackupSessionTest {
    private static final int CAPACITY = 256 << 20;
    private static final int FIRST = 16;

    @TempDir
    Path dir;

    private PoolFile pool;
    private Committer committer;

    @BeforeEach
    void shortTimes() {
        BackupSession.helloMillis = 200;
        BackupSession.patienceMillis = 500;
    }

    @AfterEach
    void close() {
        BackupListener.end();
        if (committer != null) {
            committer.end();
        }
        if (pool != null) {
            pool.abandon();
        }
    }

    private Path path() {
        return dir.resolve("p");
    }

    private void open(Durability durability) {
        open(durability, Duration.ofMillis(20));
    }

    private void open(Durability durability, Duration interval) {
        pool = new PoolFile(path(), CAPACITY, durability);
        committer = Committer.start(pool, TowaOptions.DEFAULT.withInterval(interval));
        BackupListener.begin(pool, committer);
    }

    private static void store(long at, long v) {
        int gate = Gate.enter();
        try {
            Nvm.putLong(at, v);
        } finally {
            Gate.exit(gate);
        }
    }

    /** A tool whose backup has begun: the program may not know yet that the one before has gone. */
    private Tool begun() throws IOException {
        Tool t = new Tool(path()).hello();
        Tool.Message m = t.next();
        for (int i = 0; i < 100 && m.kind() == BackupSession.REFUSED && m.body().getInt(0) == BackupSession.BUSY; i++) {
            LockSupport.parkNanos(10_000_000);
            t.close();
            t = new Tool(path()).hello();
            m = t.next();
        }
        assertEquals(BackupSession.BEGUN, m.kind());
        assertEquals(pool.superblock().uuidHigh, m.number(0));
        assertEquals(pool.superblock().seq, m.number(16));
        return t;
    }

    private static void refused(Tool t, int reason, String text) throws IOException {
        Tool.Message m = t.takePages();
        assertEquals(BackupSession.REFUSED, m.kind());
        assertEquals(reason, m.body().getInt(0), m.text());
        assertTrue(m.text().contains(text), m.text());
        assertTrue(t.isHungUp());
    }

    @Test
    void whatChangesAfterTheBeginningIsSentAsItIsAtTheEnd() throws IOException {
        for (Durability d : Durability.values()) {
            open(d);
            store(100_000, 1);
            try (Tool t = begun()) {
                store(200_000, 2);
                store(300_000, 3);
                t.send((byte) 'p');
                store(300_000, 4);
                t.send((byte) 'f');
                Tool.Message end = t.takePages();
                assertEquals(BackupSession.END, end.kind());
                assertEquals(t.sent, end.number(0));
                assertTrue(t.pages.keySet().containsAll(Set.of(200_000 / 4096, 300_000 / 4096)), d + " " + t.pages.keySet());
                assertEquals(2, t.number(200_000 / 4096, 200_000 % 4096));
                assertEquals(4, t.number(300_000 / 4096, 300_000 % 4096));
            }
            if (committer != null) {
                committer.sync();
            }
            // Nothing is followed any more: the next backup begins anew.
            try (Tool t = begun()) {
                t.send((byte) 'f');
                t.takePages();
                assertFalse(t.pages.containsKey(200_000 / 4096), d.toString());
            }
            close();
            pool = null;
        }
    }

    private static int[] take(Changes c) {
        Gate.shut();
        try {
            return c.take();
        } finally {
            Gate.open();
        }
    }

    /** What a commit takes, a backup has, too, and the other way about; what a backup has taken when it ends is committed. */
    @Test
    void aBackupAndCommitsHaveThePagesBoth() {
        open(Durability.POWER, Duration.ofHours(1));
        Changes c = new Changes(committer, CAPACITY);
        c.begin();
        store(FIRST * 4096, 1);
        assertArrayEquals(new int[] {FIRST}, take(c));
        store((FIRST + 1) * 4096, 2);
        committer.sync();
        store((FIRST + 2) * 4096, 3);
        assertArrayEquals(new int[] {FIRST + 1, FIRST + 2}, take(c));
        c.end();
        store((FIRST + 3) * 4096, 4);
        committer.sync();
        close();
        open(Durability.POWER, Duration.ofHours(1));
        for (int i = 0; i < 4; i++) {
            assertEquals(i + 1, Nvm.getLong((FIRST + i) * 4096));
        }
    }

    /** What a commit under way has taken, and not written, is in the file when the tool may begin to copy it. */
    @Test
    void theBeginningWaitsForACommit() throws IOException {
        open(Durability.POWER, Duration.ofHours(1));
        long word = 100_000;
        store(word, 1);
        new Changes(committer, CAPACITY).begin();
        ByteBuffer b = ByteBuffer.allocate(8).order(ByteOrder.LITTLE_ENDIAN);
        pool.channel().read(b, word);
        assertEquals(1, b.getLong(0));
    }

    /** Entry n says on page n mod pages that it was there: at one moment, the last ones of all pages are neighbours. */
    @Test
    void aProgramThatChangesMoreThanTheToolTakesIsSlowedDown() throws Exception {
        open(Durability.PROCESS);
        int pages = 18_000;
        boolean[] stop = new boolean[1];
        Thread writer = new Thread(() -> {
            for (long n = pages; !stop[0]; n++) {
                store((FIRST + n % pages) * 4096, n);
            }
        });
        BackupSession.patienceMillis = 10_000;
        try (Tool t = begun()) {
            writer.start();
            Thread.sleep(500);
            t.send((byte) 'f');
            Tool.Message end = t.takePages();
            assertEquals(BackupSession.END, end.kind(), () -> end.text());
            assertTrue(end.number(8) > 1, end.number(8) + " rounds");
            long last = 0;
            for (int p = FIRST; p < FIRST + pages; p++) {
                last = Math.max(last, t.number(p, 0));
            }
            for (int p = FIRST; p < FIRST + pages; p++) {
                assertTrue(t.number(p, 0) > last - pages, "page " + p + " has " + t.number(p, 0) + " beside " + last);
            }
        } finally {
            stop[0] = true;
            writer.join();
        }
    }

    @Test
    void aToolThatSaysNothingOrRubbishIsGivenUp() throws IOException {
        open(Durability.PROCESS);
        try (Tool silent = new Tool(path())) {
            assertTrue(silent.isHungUp());
        }
        try (Tool other = new Tool(path())) {
            other.send("GET / HTTP/1.1\r\n\r\n".getBytes());
            refused(other, BackupSession.UNKNOWN, "speaks version 1");
        }
        try (Tool t = begun()) {
            t.send((byte) 'x');
            refused(t, BackupSession.UNKNOWN, "does not understand");
        }
        try (Tool t = begun()) {
            // Nothing more: a tool that copies says so now and then.
            assertTrue(t.isHungUp());
        }
        begun().close();
    }

    @Test
    void onlyOneBackupIsMadeAtATime() throws IOException {
        open(Durability.PROCESS);
        try (Tool t = begun(); Tool second = new Tool(path()).hello()) {
            refused(second, BackupSession.BUSY, "another backup");
            t.send((byte) 'f');
            assertEquals(BackupSession.END, t.takePages().kind());
        }
    }

    /** The gate is open, stores go on, and the next tool is served. */
    @Test
    void aToolThatStopsReadingAmidThePagesIsGivenUp() throws Exception {
        open(Durability.PROCESS);
        try (Tool t = begun()) {
            for (int p = FIRST; p < 4000; p++) {
                store(p * 4096L, p);
            }
            t.send((byte) 'f');
            assertEquals(BackupSession.PAGES, t.next().kind());
            for (long end = System.nanoTime() + 800_000_000; System.nanoTime() < end; Thread.sleep(1)) {
                assertTimeoutPreemptively(Duration.ofSeconds(1), () -> store(100_000, 7));
            }
            assertThrows(IOException.class, t::takePages);
        }
        begun().close();
    }

    @Test
    void closingThePoolTellsTheToolAndDoesNotWaitForIt() throws IOException {
        open(Durability.PROCESS);
        BackupSession.patienceMillis = 60_000;
        try (Tool t = begun()) {
            long start = System.nanoTime();
            BackupListener.end();
            assertTrue(System.nanoTime() - start < 1_000_000_000);
            refused(t, BackupSession.CLOSING, "closed the pool");
        }
        assertFalse(Files.exists(dir.resolve("p.sock")));
        BackupListener.begin(pool, committer);
        // Amid the pages it finds the end of the connection.
        try (Tool t = begun()) {
            for (int p = FIRST; p < 4000; p++) {
                store(p * 4096L, p);
            }
            t.send((byte) 'f');
            t.next();
            BackupListener.end();
            assertTrue(t.isHungUp());
        }
    }

    @Test
    void aPoolThatWasMovedIsNotServed() throws IOException {
        open(Durability.PROCESS);
        Files.move(path(), dir.resolve("elsewhere"));
        try (Tool t = new Tool(path()).hello()) {
            refused(t, BackupSession.FAILED, "was moved or removed");
        }
        Files.move(dir.resolve("elsewhere"), path());
        try (Tool t = begun()) {
            Files.move(path(), dir.resolve("elsewhere"));
            t.send((byte) 'f');
            refused(t, BackupSession.FAILED, "was moved or removed");
        }
        Files.move(dir.resolve("elsewhere"), path());
    }

    @Test
    void theSocketIsThisUsersAloneAndReplacesOnlyOneThatWasLeft() throws IOException {
        Path socket = dir.resolve("p.sock");
        open(Durability.PROCESS);
        assertEquals("rw-------", PosixFilePermissions.toString(Files.getPosixFilePermissions(socket)));
        // As a process that was killed leaves it.
        Files.createLink(dir.resolve("kept"), socket);
        BackupListener.end();
        assertFalse(Files.exists(socket));
        Files.move(dir.resolve("kept"), socket);
        BackupListener.begin(pool, committer);
        begun().close();
        BackupListener.end();
        Files.writeString(socket, "another's");
        BackupListener.begin(pool, committer);
        BackupListener.end();
        assertEquals("another's", Files.readString(socket));
        try (var names = Files.list(dir)) {
            assertEquals(2, names.count());
        }
    }
}
