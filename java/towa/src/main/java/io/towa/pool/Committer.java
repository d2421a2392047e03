package io.towa.pool;

import io.towa.PoolException;
import io.towa.PoolException.Reason;
import io.towa.TowaOptions;
import io.towa.events.Events;
import io.towa.graph.Gate;
import io.towa.medium.DirtyPages;
import io.towa.medium.Nvm;
import java.io.IOException;
import java.lang.foreign.MemorySegment;
import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.List;
import jdk.internal.access.SharedSecrets;

/**
 * Commits of a private image: every interval the pages that were stored to go to the log, then to the pool's file ({@link RedoLog}).
 *
 * <pre>
 *   gate shut: dirty pages taken and copied | gate open: log, sync | pages to the file, sync
 * </pre>
 *
 * <p>What must always hold: a commit has all stores of an operation, or none; a page that is not in the file as of its last store is dirty, or in a
 * log that is whole. So a commit whose writes fail (a full disk) loses nothing: its pages are dirty again, and the next one takes them. A log
 * that is whole but whose pages did not all get to the file is applied once more before anything else.
 *
 * <p>A sync that fails is final: this process commits no more. It could not write the same pages again, because they do not leave the cache while the pool is mapped
 * ({@link Disk}). The next opening finds what was acknowledged, in the file or in the log.
 *
 * <p>A section ({@code Towa.atomically}) need not be over: its undo log is part of the image, and opening rolls back what a commit has of it. So
 * nobody waits for a section, and {@link #sync} inside one returns.
 */
public final class Committer extends Thread {
    private static final int CHUNK = 256 * DirtyPages.PAGE;
    /** Chunks in memory: 256 MiB. What is more is written to the log with the gate shut. */
    private static final int MOST_CHUNKS = 256;
    /** Chunks, and bytes of the log, that are kept for the next commit. */
    private static final int KEEP_CHUNKS = 16;
    private static final long KEEP_LOG = 64L << 20;

    private final PoolFile pool;
    private final DirtyPages dirty;
    private final Disk data;
    private final RedoLog redo;
    private final long intervalNanos;
    private final long capacity;
    private final List<ByteBuffer> chunks = new ArrayList<>();
    /** The log is whole, and its pages are not known to be in the file. */
    private boolean unapplied;
    /** A sync failed. */
    private PoolException broken;
    /**
     * While a backup is made, else null: what was stored to since the backup last took its pages, and since the last commit. Stores mark {@link #dirty} alone, whose marks go to both
     * when either is taken. With the gate shut.
     */
    private DirtyPages follower;
    private DirtyPages kept;

    /** Under this object's lock: commits that began, ended, were asked for; the last good one; why the last bad one was that. */
    private long begun;
    private long ended;
    private long wanted;
    private long good;
    private PoolException failure;
    private boolean stopped;
    private volatile long lastPause;
    private volatile long longestPause;
    private volatile long pagesWritten;

    Committer(PoolFile pool, DirtyPages dirty, Disk data, RedoLog redo, long intervalNanos) {
        super("towa-committer");
        setDaemon(true);
        this.pool = pool;
        this.dirty = dirty;
        this.data = data;
        this.intervalNanos = intervalNanos;
        this.redo = redo;
        capacity = pool.superblock().capacity;
    }

    /** Begins to commit; null if the pool is not mapped privately. */
    public static Committer start(PoolFile pool, TowaOptions options) {
        if (Nvm.medium() != Nvm.PRIVATE) {
            return null;
        }
        Committer c = new Committer(pool, pool.dirty(), new Disk.Channel(pool.channel()), pool.log(), options.interval().toNanos());
        c.start();
        atExit(c);
        return c;
    }

    private static boolean hooked;
    private static volatile Committer last;

    /** A program that ends in the ordinary way has its last stores in the file: a commit after its own shutdown hooks. */
    private static synchronized void atExit(Committer c) {
        last = c;
        if (hooked) {
            return;
        }
        hooked = true;
        try {
            SharedSecrets.getJavaLangAccess().registerShutdownHook(HOOK_SLOT, false, new LastCommit());
        } catch (InternalError | IllegalStateException e) {
            // The slot is taken, or the machine is on its way down: then as after a crash, at most one interval is lost.
        }
    }

    /** Behind console, application hooks, and files to delete. */
    private static final int HOOK_SLOT = 7;

    private static final class LastCommit implements Runnable {
        @Override
        public void run() {
            Committer c = last;
            if (c != null && c.isAlive()) {
                try {
                    c.sync();
                } catch (PoolException e) {
                    System.err.println("towa: the last commit failed: " + e.getMessage());
                }
            }
        }
    }

    /** Goes on after {@link #end}. */
    public Committer again() {
        Committer c = new Committer(pool, dirty, data, redo, intervalNanos);
        c.unapplied = unapplied;
        c.broken = broken;
        c.start();
        return c;
    }

    /** No commit is made by itself when this returns. */
    public void end() {
        synchronized (this) {
            stopped = true;
            notifyAll();
        }
        Uninterruptibly.join(this);
    }

    /** The last commit; the thread has ended, and the caller has the gate shut. All of the pool is in its file afterwards. */
    public void last() {
        begin();
        PoolException failed = commit(true);
        // For ever: who asks from now on asks for what this commit has, or for what it failed to write.
        ended(Long.MAX_VALUE, failed);
        if (failed != null) {
            throw failed;
        }
    }

    /** Whether no commit succeeds any more until the pool is opened again. To be asked when the thread has ended. */
    public boolean isBroken() {
        return broken != null;
    }

    /**
     * From now on {@code pages} has, after each {@link #handOver}, what was stored to since; null: no longer. The gate is shut.
     *
     * @param more empty, for the commits beside it; null, too, if {@code pages} is
     */
    public void follow(DirtyPages pages, DirtyPages more) {
        if (kept != null) {
            dirty.add(kept);
        }
        follower = pages;
        kept = more;
    }

    /** To who follows, if there is one, and to the next commit, what was stored to since the last time. The gate is shut. */
    public void handOver() {
        if (follower != null) {
            dirty.moveTo(follower, kept);
        }
    }

    /** How many pages {@link #handOver} would hand over, more or less. */
    public int dirtyPages() {
        return dirty.count();
    }

    /** Waits for a commit that begins after the call. */
    public void sync() {
        boolean interrupted = false;
        synchronized (this) {
            long mine = begun + 1;
            wanted = Math.max(wanted, mine);
            notifyAll();
            while (ended < mine) {
                try {
                    wait();
                } catch (InterruptedException e) {
                    interrupted = true;
                }
            }
            if (interrupted) {
                Thread.currentThread().interrupt();
            }
            if (good < mine) {
                throw new PoolException(failure.reason(), failure.getMessage(), failure);
            }
        }
    }

    @Override
    public void run() {
        long next = System.nanoTime() + intervalNanos;
        while (pause(next)) {
            next = System.nanoTime() + intervalNanos;
            long n = begin();
            boolean before = broken != null;
            ended(n, commit(false));
            if (broken != null && !before && !isWanted(n)) {
                // No thread is told. A program that never waits for a commit would go on for hours, and lose them.
                System.err.println("towa: " + broken.getMessage());
            }
            Events.commitWaiting();
        }
    }

    private synchronized boolean pause(long until) {
        for (;;) {
            long left = until - System.nanoTime();
            if (stopped || wanted > begun || left <= 0) {
                return !stopped;
            }
            try {
                wait(left / 1_000_000 + 1);
            } catch (InterruptedException e) {
                // nobody has reason to; look
            }
        }
    }

    private synchronized boolean isWanted(long n) {
        return wanted >= n;
    }

    private synchronized long begin() {
        return ++begun;
    }

    private synchronized void ended(long n, PoolException failed) {
        ended = n;
        if (failed == null) {
            good = n;
        } else {
            failure = failed;
        }
        notifyAll();
    }

    /** @return null, or why it failed: then all it was to write is still to be written, or {@link #broken} */
    private PoolException commit(boolean shut) {
        if (broken != null) {
            return broken;
        }
        Object event = Events.begin(Events.COMMIT);
        int[] pages = null;
        boolean logged = false;
        try {
            if (unapplied) {
                redo.apply(data, capacity);
                unapplied = false;
            }
            DirtyPages more = kept;
            makeChunks(dirty.count() + (more == null ? 0 : more.count()));
            long start = System.nanoTime();
            boolean inMemory;
            if (!shut) {
                Gate.shut();
            }
            try {
                handOver();
                pages = kept != null ? kept.take() : dirty.take();
                inMemory = copy(pages);
            } finally {
                if (!shut) {
                    Gate.open();
                }
                lastPause = System.nanoTime() - start;
                longestPause = Math.max(longestPause, lastPause);
            }
            if (pages.length == 0) {
                pool.requireNames();
                return null;
            }
            if (inMemory) {
                appendAll(pages.length);
            }
            redo.finish();
            logged = true;
            unapplied = true;
            if (inMemory) {
                write(pages);
                data.sync();
            } else {
                redo.apply(data, capacity);
            }
            unapplied = false;
            pool.requireNames();
            redo.trim(KEEP_LOG);
            pagesWritten += pages.length;
            if (Events.ended(event)) {
                Events.commit(event, pages.length, (long) pages.length * DirtyPages.PAGE, lastPause);
            }
            return null;
        } catch (IOException e) {
            if (pages != null && !logged) {
                dirtyAgain(pages, shut);
            }
            return failed(e);
        } catch (RuntimeException | Error e) {
            if (pages != null && !logged) {
                dirtyAgain(pages, shut);
            }
            return e instanceof PoolException ? (PoolException) e : new PoolException(Reason.IO, pool.name() + ": " + e, e);
        } finally {
            while (chunks.size() > KEEP_CHUNKS) {
                chunks.remove(chunks.size() - 1);
            }
        }
    }

    /** Before the gate is shut: making them takes longer than filling them. */
    private void makeChunks(int pages) {
        int wanted = Math.min(MOST_CHUNKS, pages / (CHUNK / DirtyPages.PAGE) + 1);
        while (chunks.size() < wanted) {
            chunks.add(ByteBuffer.allocateDirect(CHUNK));
        }
    }

    /** The gate is shut for it: a backup that hands marks over beside it would lose some. */
    private void dirtyAgain(int[] pages, boolean shut) {
        if (!shut) {
            Gate.shut();
        }
        try {
            for (int i = 0; i < pages.length; i++) {
                dirty.mark((long) pages[i] * DirtyPages.PAGE, 1);
            }
        } finally {
            if (!shut) {
                Gate.open();
            }
        }
    }

    private PoolException failed(IOException e) {
        String why = String.valueOf(e.getMessage());
        boolean full = why.contains("No space") || why.contains("quota");
        Reason reason = full ? Reason.FULL : Reason.IO;
        if (e instanceof Disk.SyncFailed) {
            broken = new PoolException(reason, pool.name() + ": " + why + "; what the device has of this commit is not known, and no later one is made: "
                + (full ? "make room, " : "") + "close the pool and open it again, which goes on from what the device has", e);
            return broken;
        }
        return new PoolException(reason, pool.name() + ": a commit failed: " + why
            + "; what it was to write is kept and tried again at the next" + (full ? ": make room" : ""), e);
    }

    /**
     * Copies the pages to the chunks; nobody stores meanwhile.
     *
     * @return false if there were too many: then all are in the log
     */
    private boolean copy(int[] pages) throws IOException {
        redo.begin(pages);
        boolean all = pages.length <= MOST_CHUNKS * (CHUNK / DirtyPages.PAGE);
        int chunk = 0;
        for (int i = 0; i < pages.length;) {
            if (chunk == chunks.size()) {
                chunks.add(ByteBuffer.allocateDirect(CHUNK));
            }
            ByteBuffer b = chunks.get(chunk).clear();
            long to = MemorySegment.ofBuffer(b).address();
            int n = 0;
            for (; n < CHUNK && i < pages.length; n += DirtyPages.PAGE, i++) {
                Nvm.copyOut((long) pages[i] * DirtyPages.PAGE, null, to + n, DirtyPages.PAGE);
            }
            b.limit(n);
            if (all) {
                chunk++;
            } else {
                redo.append(b);
            }
        }
        return all;
    }

    private void appendAll(int pages) throws IOException {
        for (int chunk = 0, left = pages; left > 0; chunk++, left -= CHUNK / DirtyPages.PAGE) {
            redo.append(chunks.get(chunk));
        }
    }

    /** Writes the chunks to the pool's file, neighbours in one go. */
    private void write(int[] pages) throws IOException {
        int inChunk = CHUNK / DirtyPages.PAGE;
        RedoLog.beginPages(data, capacity, redo.number());
        for (int i = 0; i < pages.length;) {
            int n = 1;
            while (i + n < pages.length && (i + n) % inChunk != 0 && pages[i + n] == pages[i] + n) {
                n++;
            }
            int from = i % inChunk * DirtyPages.PAGE;
            data.write(chunks.get(i / inChunk).duplicate().position(from).limit(from + n * DirtyPages.PAGE), (long) pages[i] * DirtyPages.PAGE);
            i += n;
        }
        RedoLog.endPages(data, redo.number());
    }

    /** How long the last commit kept the gate shut, and the longest. */
    public double lastPauseMillis() {
        return lastPause / 1e6;
    }

    public double longestPauseMillis() {
        return longestPause / 1e6;
    }

    public long pagesWritten() {
        return pagesWritten;
    }
}
