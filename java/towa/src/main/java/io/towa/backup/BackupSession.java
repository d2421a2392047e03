package io.towa.backup;

import io.towa.PoolException;
import io.towa.graph.Gate;
import io.towa.medium.DirtyPages;
import io.towa.medium.LocalSocket;
import io.towa.medium.Nvm;
import io.towa.medium.SystemCalls;
import io.towa.pool.Committer;
import io.towa.pool.PoolFile;
import io.towa.pool.Superblock;
import java.nio.charset.StandardCharsets;
import jdk.internal.misc.Unsafe;

/**
 * One connection of {@code towa backup}. All numbers are little endian; {@code crates/java-pool/src/live.rs} is the other side.
 *
 * <pre>
 *   tool                                      program
 *   "TOWACOPY", u32 version 1, u32 0     ->   changes are followed from here on
 *                                        <-   BEGUN    uuid, seq, stamp, capacity: of the superblock
 *   copies the file; 'p' now and then    ->
 *   'f': the copy is made                ->   rounds: pages that changed, while the program goes on; a last one at one moment
 *                                        <-   PAGES    n page numbers (u32), n pages of 4096 bytes; n at most 256
 *                                        <-   END      u64 pages sent, u64 rounds, u64 ns that the last one kept the gate shut
 *   at any time                          <-   REFUSED  u32 reason, text
 * </pre>
 *
 * A message of the program is u32 kind, u32 length, and so many bytes.
 *
 * <p>What the tool has at the end is the pool's memory at the moment of the last round, as a kill of the process at that moment would leave it: a page
 * that did not change since changes were followed is in its copy of the file ({@link Changes}), and every other one was sent after its last change.
 * A round is sent while stores go on, so its pages may be torn; a page that is stored to after it was taken is in a later round, the last at the latest.
 * The last round is copied to memory with the gate shut, and sent with the gate open.
 *
 * <p>What must always hold: the gate is never shut while this waits for the tool. The last round has {@link #MOST} pages at most, and its memory is all that a backup
 * takes, beside one bit for each page of the pool. A tool that is silent, or takes nothing, for {@link #patienceMillis} is given up. Stopping on either side at any moment
 * changes nothing in the pool: nothing of it is written here.
 */
final class BackupSession extends Thread {
    static final long HELLO = 0x59504f4341574f54L;
    static final int VERSION = 1;
    static final int BEGUN = 1;
    static final int PAGES = 2;
    static final int END = 3;
    static final int REFUSED = 4;
    static final int BUSY = 1;
    static final int CLOSING = 2;
    static final int FAILED = 3;
    static final int UNKNOWN = 4;

    /** Pages in one message. */
    private static final int TOGETHER = 256;
    /** Pages of the last round: so few are worth no further round (8 MiB), so many will do after some rounds (64 MiB), and so many at most (256 MiB). */
    private static final int FEW = 2048;
    private static final int MANY = 16384;
    private static final int MOST = 65536;
    /** Rounds before more than {@link #FEW} will do, and the program is slowed down; before more than {@link #MANY} will do; before the backup is given up. */
    private static final int PATIENT = 4;
    private static final int IMPATIENT = 7;
    private static final int ROUNDS = 12;
    /** The longest time for which the program stands still while a round is sent, and how long it does altogether. */
    private static final long HOLD_NANOS = 20_000_000;
    private static final long ALL_HOLDS_NANOS = 10_000_000_000L;
    private static final int LOOK_MILLIS = 50;
    private static final int HEAD = 8;
    private static final int TEXT_MAX = 4096;
    private static final Unsafe U = Unsafe.getUnsafe();

    /** How long a new connection may be silent, and one that makes a backup; tests set less. */
    static int helloMillis = 5_000;
    static int patienceMillis = 60_000;

    /** Who makes a backup now; under this class' lock. */
    private static BackupSession current;

    private final BackupListener listener;
    private final PoolFile pool;
    private final Committer committer;
    private final int connection;
    private volatile boolean ended;
    /** A part of a message has been sent. */
    private boolean amid;
    /** Memory for one message. */
    private long message;
    /** Memory of the last round; 0: there is none. */
    private long copy;
    private long copyBytes;
    private long sent;
    private int rounds;
    /** For how long the last round kept the gate shut. */
    private long pause;
    private long held;

    /** Ends the conversation; what the tool is told. */
    private static final class Stopped extends Exception {
        private static final long serialVersionUID = 1;
        final int reason;

        /** @param text null: the other side has gone, or is not to be told */
        Stopped(int reason, String text) {
            super(text, null, false, false);
            this.reason = reason;
        }
    }

    BackupSession(BackupListener listener, PoolFile pool, Committer committer, int connection) {
        super("towa-backup");
        setDaemon(true);
        this.listener = listener;
        this.pool = pool;
        this.committer = committer;
        this.connection = connection;
    }

    /** The pool is about to be closed. */
    void end() {
        ended = true;
    }

    @Override
    public void run() {
        try {
            message = U.allocateMemory(HEAD + TOGETHER * (4 + DirtyPages.PAGE));
        } catch (OutOfMemoryError e) {
            end(0);
            return;
        }
        try {
            converse();
        } catch (Stopped e) {
            tell(e.reason, e.getMessage());
        } catch (PoolException e) {
            tell(FAILED, e.getMessage());
        } catch (OutOfMemoryError e) {
            tell(FAILED, pool.name() + ": the program has no memory left for a backup; try again, or give it more");
        } finally {
            end(message);
        }
    }

    private void end(long memory) {
        U.freeMemory(memory);
        LocalSocket.close(connection);
        listener.ended(this);
    }

    private void converse() throws Stopped {
        receive(16, helloMillis);
        if (U.getLong(message) != HELLO || U.getLong(message + 8) != VERSION) {
            throw new Stopped(UNKNOWN, pool.name() + ": the program that has it open speaks version " + VERSION + " of the way backups are made, and this `towa`"
                + " does not; use the `towa` of the release that the program's towa.jar is of");
        }
        synchronized (BackupSession.class) {
            if (current != null) {
                throw new Stopped(BUSY, pool.name() + ": another backup of it is being made; try again when that is done");
            }
            current = this;
        }
        try {
            pool.requireNames();
            serve(new Changes(committer, pool.superblock().capacity));
        } finally {
            leave();
        }
        // The last word, when all else is done: the tool may begin another backup at once.
        pool.requireNames();
        head(END, 24);
        U.putLong(message + HEAD, sent);
        U.putLong(message + HEAD + 8, rounds);
        U.putLong(message + HEAD + 16, pause);
        send(message, HEAD + 24, false);
    }

    private void serve(Changes changes) throws Stopped {
        try {
            changes.begin();
            begun();
            while (receive(1, patienceMillis) != 'f') {
                if (U.getByte(message) != 'p') {
                    throw new Stopped(UNKNOWN, pool.name() + ": the program that has it open does not understand this `towa`");
                }
            }
            for (rounds = 1; !isLast(changes); rounds++) {
                if (rounds > ROUNDS || held > ALL_HOLDS_NANOS) {
                    throw new Stopped(FAILED, pool.name() + ": the program changes more than " + (MOST * (long) DirtyPages.PAGE >> 20) + " MiB while the tool takes"
                        + " what changed before; copy it to a faster disk, or when the program does less, or when the pool is closed");
                }
            }
        } finally {
            changes.end();
        }
    }

    /** Another backup may be made. */
    private void leave() {
        if (copy != 0) {
            SystemCalls.unmap(copy, copyBytes);
            copy = 0;
        }
        synchronized (BackupSession.class) {
            current = current == this ? null : current;
        }
    }

    private void begun() throws Stopped {
        Superblock s = pool.superblock();
        head(BEGUN, 40);
        U.putLong(message + HEAD, s.uuidHigh);
        U.putLong(message + HEAD + 8, s.uuidLow);
        U.putLong(message + HEAD + 16, s.seq);
        U.putLong(message + HEAD + 24, s.stamp);
        U.putLong(message + HEAD + 32, s.capacity);
        send(message, HEAD + 40, false);
    }

    /**
     * The round that ends the backup, if little enough has changed; else one that sends what has changed while the program goes on.
     *
     * @return whether it was the last one
     */
    private boolean isLast(Changes changes) throws Stopped {
        int expected = changes.count();
        int room = expected > most(rounds) ? 0 : Math.min(MOST, expected + expected / 4 + TOGETHER);
        if (room > 0) {
            reserve((long) room * DirtyPages.PAGE);
        }
        int[] pages;
        boolean last;
        long start = System.nanoTime();
        Gate.shut();
        try {
            pages = changes.take();
            last = pages.length <= room;
            if (last) {
                copyOut(pages, 0, pages.length, copy);
            }
        } finally {
            Gate.open();
        }
        pause = System.nanoTime() - start;
        for (int from = 0; from < pages.length; from += TOGETHER) {
            int n = Math.min(TOGETHER, pages.length - from);
            start = System.nanoTime();
            sendPages(pages, from, n, last ? copy + (long) from * DirtyPages.PAGE : 0);
            if (!last) {
                hold(System.nanoTime() - start);
            }
        }
        return last;
    }

    /** Pages that the last round may have, if it is this one. */
    private static int most(int round) {
        return round <= PATIENT ? FEW : round <= IMPATIENT ? MANY : MOST;
    }

    /**
     * The program stands still, for a share of the time that grows from round to round: it changes pages faster than the tool takes them. That time is by the clock, whatever
     * the tool does.
     */
    private void hold(long tookNanos) {
        if (rounds <= PATIENT) {
            return;
        }
        long until = System.nanoTime() + Math.min(HOLD_NANOS, tookNanos << Math.min(5, rounds - PATIENT));
        held -= System.nanoTime();
        Gate.shut();
        try {
            for (long left = until - System.nanoTime(); left > 0 && !ended; left = until - System.nanoTime()) {
                java.util.concurrent.locks.LockSupport.parkNanos(left);
            }
        } finally {
            Gate.open();
        }
        held += System.nanoTime();
    }

    /** Before the gate is shut: making memory takes longer than filling it. */
    private void reserve(long bytes) {
        if (copy != 0 && copyBytes >= bytes) {
            return;
        }
        if (copy != 0) {
            SystemCalls.unmap(copy, copyBytes);
        }
        copy = SystemCalls.mapMemory(bytes);
        if (copy == -1) {
            copy = 0;
            throw new OutOfMemoryError();
        }
        copyBytes = bytes;
    }

    private static void copyOut(int[] pages, int from, int n, long to) {
        for (int i = 0; i < n; i++) {
            Nvm.copyOut((pages[from + i] & 0xffffffffL) * DirtyPages.PAGE, null, to + (long) i * DirtyPages.PAGE, DirtyPages.PAGE);
        }
    }

    /** @param content 0: what the pool has now */
    private void sendPages(int[] pages, int from, int n, long content) throws Stopped {
        head(PAGES, n * (4 + DirtyPages.PAGE));
        for (int i = 0; i < n; i++) {
            U.putInt(message + HEAD + 4L * i, pages[from + i]);
        }
        int numbers = HEAD + 4 * n;
        if (content == 0) {
            copyOut(pages, from, n, message + numbers);
            send(message, numbers + n * DirtyPages.PAGE, false);
        } else {
            send(message, numbers, true);
            send(content, n * DirtyPages.PAGE, false);
        }
        sent += n;
    }

    private void head(int kind, int length) {
        U.putInt(message, kind);
        U.putInt(message + 4, length);
    }

    private void check() throws Stopped {
        if (ended) {
            throw new Stopped(CLOSING, pool.name() + ": the program closed the pool while it was copied");
        }
    }

    /** @param more the message goes on after these bytes */
    private void send(long from, int bytes, boolean more) throws Stopped {
        long until = System.nanoTime() + patienceMillis * 1_000_000L;
        for (int done = 0; done < bytes;) {
            check();
            int n = LocalSocket.send(connection, from + done, bytes - done, LOOK_MILLIS);
            if (n > 0) {
                amid = true;
                done += n;
                until = System.nanoTime() + patienceMillis * 1_000_000L;
            } else if (n < 0 || System.nanoTime() > until) {
                throw new Stopped(0, null);
            }
        }
        amid = more;
    }

    /** @return the first byte of so many, which are in {@link #message} */
    private int receive(int bytes, int patience) throws Stopped {
        long until = System.nanoTime() + patience * 1_000_000L;
        for (int done = 0; done < bytes;) {
            check();
            int n = LocalSocket.receive(connection, message + done, bytes - done, LOOK_MILLIS);
            if (n < 0 || n == 0 && System.nanoTime() > until) {
                throw new Stopped(0, null);
            }
            done += n;
        }
        return U.getByte(message) & 0xff;
    }

    /** If there is room for it in the connection: no thread waits. Amid a message it would be none, and the tool finds the end of the connection. */
    private void tell(int reason, String text) {
        if (text == null || amid) {
            return;
        }
        byte[] bytes = text.getBytes(StandardCharsets.UTF_8);
        int length = Math.min(bytes.length, TEXT_MAX);
        head(REFUSED, 4 + length);
        U.putInt(message + HEAD, reason);
        for (int i = 0; i < length; i++) {
            U.putByte(message + HEAD + 4 + i, bytes[i]);
        }
        LocalSocket.send(connection, message, HEAD + 4 + length, 0);
    }
}
