package io.towa.pool;

import io.towa.Durability;
import io.towa.PoolException;
import io.towa.PoolException.Reason;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;

/**
 * What opening does to the two files of a pool, before anything of the pool is looked at.
 *
 * <pre>
 *   read     0 log: reloaded; file: reloaded if it is not clean, or is to grow       (the file: if it was open for POWER)
 *   check    1 file and log belong together, and the words of the file can be; nothing is written yet
 *   settle   2 log: every byte written again, synced                                  (if its commit is needed)
 *            3 file: superblock slot written again, commit applied, synced            the file is whole without the log
 *   enter    4 superblock: clean, synced                                              the file says so
 *            5 log: new stamp, no commit, synced; its name synced                     (Durability.POWER)
 *            6 superblock: not clean, new stamp, synced                               (PROCESS: then the log is removed)
 * </pre>
 *
 * <p>What a reader sees of a file need not be on the device: the process that wrote it was killed before it synced, or its sync failed, after which the
 * page cache shows what the device never gets, and later syncs succeed. So the cache is emptied first ({@link Disk#reload}; no process maps the files, so
 * every page can go), and what the next steps rely on is written again before it is synced, for file systems that do not take such advice. The log is
 * reloaded always. The file of a pool that was closed is not, which would cost reading it all from the device: every sync of its commits succeeded, and what opening writes
 * to it had its blocks before, but for the number behind a heap that grows. Pages of the pool that the log does not have are on the device: a log is
 * overwritten only after the pool was synced. A pool that was last open for {@code PROCESS} promised nothing about the device, and has in the cache what its
 * process was killed with: all of its used bytes are written again, through new pages, when it is opened for {@code POWER}.
 *
 * <p>Why stopping after each step is safe, with power lost or not. During 0: what was dirty gets to the device, as it might have by itself, and nothing that was acknowledged
 * is in the cache alone. After 1: nothing was done. During 2: the log's bytes are written with what they are, so
 * the device has the log as it was, or more of it; until 2 ends the pool on the device is at the commit before, or the log was on the device. After 2 and during 3:
 * the log is on the device, and is applied again; the other slot of the superblock is not touched. After 3: the same, to no effect. During 4: with
 * the old slot the log is needed and there; with the new one the log is of this opening and its commit is in the file, so it is let be. During 5: the file
 * is clean, so what is there of a log without a commit is not needed; the old commit bears the old stamp. During 6: with the old slot the pool is clean and its
 * log has no commit; with the new one the log is on the device and bears the stamp. Commits begin after 6.
 *
 * <p>What must always hold: the superblock of a pool that is not clean has the stamp of the log that the file needs. Stamps are random: so a log that is
 * missing, of another opening, or beside a copy of the file from another opening, is refused. Within one opening the commit numbers of {@link RedoLog} must fit.
 */
final class Opening {
    private final String name;
    private final Disk pool;
    private final RedoLog redo;
    private final RedoLog.State state;
    private final Superblock superblock;
    /** Whether the file may lack what the log has. */
    private final boolean needed;
    /** The commit that the file is at, after {@link #settle}. */
    private long at;

    /**
     * Step 0.
     *
     * @param log null: there is none
     * @param capacity that the pool is to have at least
     * @return the superblock, as it is after that
     */
    static Superblock superblock(String name, Disk pool, Disk log, long capacity) throws IOException {
        Superblock s = Superblock.read(pool, name);
        if (log != null) {
            log.reload();
        }
        if (!s.ready || s.durability != Durability.POWER || s.clean && capacity <= s.capacity) {
            return s;
        }
        pool.reload();
        return Superblock.read(pool, name);
    }

    /**
     * Looks at the files, and refuses those that do not belong together; writes nothing.
     *
     * @param log null: there is none
     */
    Opening(String name, Disk pool, Disk log, Superblock superblock, Durability wanted) throws IOException {
        this.name = name;
        this.pool = pool;
        this.superblock = superblock;
        redo = log == null ? null : new RedoLog(log, superblock.uuidHigh, superblock.uuidLow);
        state = log == null ? RedoLog.State.EMPTY : redo.read();
        needed = superblock.durability == Durability.POWER && !superblock.clean;
        long done = RedoLog.numberAt(pool, Layout.DONE);
        long begun = RedoLog.numberAt(pool, superblock.capacity);
        checkOwner(wanted);
        if (needed) {
            checkNeeded(done, begun);
        } else {
            checkComplete(done, begun);
        }
        at = applies() ? redo.number() : done;
        checkWords();
    }

    private boolean applies() {
        return needed && redo != null && redo.whole();
    }

    private String log() {
        return PoolFile.logOf(name);
    }

    private PoolException damaged(String what) {
        return new PoolException(Reason.DAMAGED, name + ": " + what + "; restore the file from a copy");
    }

    private PoolException apart(String what) {
        return new PoolException(Reason.DAMAGED, name + ": " + what + "; bring the two files of one moment together, or restore both from a copy that was made while"
            + " no program had the pool open");
    }

    private void checkOwner(Durability wanted) {
        if (state == RedoLog.State.OTHERS) {
            throw new PoolException(Reason.FOREIGN, log() + ": is the log of another pool than " + name
                + "; bring that pool's file back, or move the log away if what it holds is not wanted");
        }
        if (state == RedoLog.State.FOREIGN && (needed || wanted == Durability.POWER)) {
            throw new PoolException(Reason.FOREIGN, log() + ": in the way: the log of " + name
                + " is to be there, and this is no log; move it, or give the pool another name");
        }
        if (state == RedoLog.State.DAMAGED && (needed || wanted == Durability.POWER)) {
            throw new PoolException(Reason.DAMAGED, log() + ": the page that says whose log it is is damaged; " + (needed
                ? "restore it and " + name + " from a copy" : name + " does not need it: move it away"));
        }
    }

    /** A pool that was not closed: the log of the same opening is there, and the file is at its commit, between that and the one before, or at the one before. */
    private void checkNeeded(long done, long begun) {
        if (state == RedoLog.State.EMPTY) {
            throw apart("was not closed, and its log " + log() + (redo == null ? " is not there" : " is empty") + ", which may have a part of what was committed");
        }
        if (redo.stamp() != superblock.stamp) {
            throw apart("was not closed, and " + log() + " is of another opening: one of the two is a copy of another moment");
        }
        long n = redo.number();
        boolean fits;
        if (redo.whole()) {
            fits = n > redo.first() && done >= n - 1 && done <= n && begun >= n - 1 && begun <= n;
        } else {
            // Cut short, or none yet. Once there was a commit its header is the old one or the new one.
            boolean header = redo.pages() > 0;
            fits = done == begun && (header ? n == done + 1 || n == done && done > redo.first() : done == redo.first());
        }
        if (!fits) {
            throw apart("was not closed, and the file (commits " + done + " and " + begun + ") and " + log() + (redo.pages() > 0 ? " (commit " + n : " (none")
                + (redo.whole() ? ")" : ", not whole)") + " are not of one moment: one is damaged, or was copied while a program had the pool open");
        }
    }

    /** A pool that needs no log: one that is there has no commit, the one that the file is at, or the beginning of the next. */
    private void checkComplete(long done, long begun) {
        if (done != begun) {
            throw apart("the file is of two moments (commits " + done + " and " + begun + "): it is damaged, or was copied while a program had the pool open");
        }
        if (state == RedoLog.State.OURS && redo.pages() > 0 && (redo.stamp() != superblock.stamp
            || redo.number() != done && (redo.whole() || redo.number() != done + 1))) {
            throw apart("needs no log, and " + log() + " has a commit of another moment: the file is a copy");
        }
    }

    /** Refuses words that cannot be, of the file as it will be when the commit is applied. */
    private void checkWords() throws IOException {
        ByteBuffer words = ByteBuffer.allocate(80).order(ByteOrder.LITTLE_ENDIAN);
        if (!applies() || !redo.page((int) (Layout.FRONTIER / RedoLog.PAGE), words)) {
            words.clear();
            pool.read(words, Layout.FRONTIER);
        }
        long size = pool.size();
        long frontier = word(words, Layout.FRONTIER);
        if (size < Layout.HEAP) {
            throw damaged("cut to " + size + " bytes");
        }
        if (frontier < Layout.HEAP || frontier > superblock.capacity || frontier % Layout.SEGMENT != 0) {
            throw damaged("frontier " + frontier + " is outside the file");
        }
        if (frontier > size && !applies()) {
            throw damaged("cut to " + size + " bytes, of which it used " + frontier);
        }
        long[] places = {Layout.CLASSES, Layout.ROOTS, Layout.UNDO};
        String[] names = {"class records", "root records", "the undo log"};
        for (int i = 0; i < places.length; i++) {
            long v = word(words, places[i]);
            if (v != Layout.NONE && (v < Layout.HEAP || v >= frontier || v % 16 != 0)) {
                throw damaged("the head of " + names[i] + " is " + v + ", no place in the heap");
            }
        }
        check(words, Layout.MARK_NUMBER, "mark number", Layout.MAX_MARK_NUMBER);
        check(words, Layout.CYCLE, "collector cycle", Layout.MAX_CYCLE);
        check(words, Layout.REHASH, "mark of stale tables", Layout.STALE);
        check(words, Layout.SECTIONS, "limit of section numbers", Long.MAX_VALUE);
    }

    private static long word(ByteBuffer words, long place) {
        return words.getLong((int) (place - Layout.FRONTIER));
    }

    private void check(ByteBuffer words, long place, String what, long most) {
        long v = word(words, place);
        if (v < 1 || v > most) {
            throw damaged(what + " " + v + " is none");
        }
    }

    /** Steps 2 and 3. @param capacity that the pool is going to have */
    void settle(Durability wanted, long capacity) throws IOException {
        if (applies() && !redo.rewrite()) {
            // The cache kept a clean page that the device does not have, and dropped it after the first look. The pool has nothing of that commit yet.
            throw new IOException(log() + " is not on the device as it was read first; open the pool again, which goes on from what the device has");
        }
        if (wanted == Durability.POWER && superblock.durability == Durability.PROCESS) {
            rewriteAll();
        }
        superblock.settle(pool);
        if (at != 0) {
            RedoLog.beginPages(pool, capacity, at);
        }
        if (applies()) {
            redo.apply(pool, superblock.capacity);
            return;
        }
        if (at != 0) {
            RedoLog.beginPages(pool, superblock.capacity, at);
            RedoLog.endPages(pool, at);
        }
        pool.sync();
    }

    /**
     * Everything that is in use, through new pages. Behind the frontier nothing is, but for the number that is written next. Why stopping is safe: the pool is one of
     * {@code PROCESS} until step 6. A folio is out of the cache for the time of one write; only if an earlier sync failed does the device lack it then.
     */
    private void rewriteAll() throws IOException {
        long frontier = word(Layout.FRONTIER);
        pool.sync();
        pool.rewrite(0, frontier);
        pool.evict(frontier + Disk.FOLIO - 1 & -Disk.FOLIO, 0);
    }

    private long word(long place) throws IOException {
        return RedoLog.numberAt(pool, place);
    }

    /** What step 5 makes the log of: its file, open, with its name on the device. */
    interface LogFile {
        Disk make() throws IOException;
    }

    /** Steps 4 to 6, for commits. @param stamp random, not 0 */
    RedoLog enterForCommits(LogFile file, long capacity, long stamp, int pid) throws IOException {
        if (!superblock.clean) {
            superblock.clean = true;
            superblock.write(pool);
        }
        RedoLog log = new RedoLog(file.make(), superblock.uuidHigh, superblock.uuidLow);
        log.begin(stamp, at);
        superblock.stamp = stamp;
        enter(Durability.POWER, capacity, pid);
        return log;
    }

    /** Step 6 alone. @return whether there is a log, which counts no more */
    boolean enter(Durability wanted, long capacity, int pid) throws IOException {
        superblock.clean = false;
        superblock.durability = wanted;
        superblock.capacity = capacity;
        superblock.pid = pid;
        superblock.write(pool);
        return state == RedoLog.State.OURS || state == RedoLog.State.EMPTY && redo != null;
    }

    /** Of a pool that is being made: no log of another one lies where its own is to be. */
    static void checkNew(String name, Disk log) throws IOException {
        if (log == null) {
            return;
        }
        log.reload();
        RedoLog.State state = new RedoLog(log, 0, 0).read();
        if (state == RedoLog.State.OTHERS || state == RedoLog.State.OURS || state == RedoLog.State.DAMAGED) {
            throw new PoolException(Reason.FOREIGN, PoolFile.logOf(name) + ": is the log of another pool than " + name
                + ", which is to be made; bring that pool's file back, or move the log away if what it holds is not wanted");
        }
    }
}
