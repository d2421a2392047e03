package io.towa.graph;

import io.towa.OnDemand;
import io.towa.PoolException;
import io.towa.PoolException.Reason;
import io.towa.medium.Nvm;
import io.towa.pool.Allocator;
import io.towa.pool.Layout;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;

/**
 * The walk over all replicas that the roots reach, or one value that was not loaded yet ({@link Loads}), by several threads: what they share.
 *
 * <pre>
 *   a replica is    met: object made, with its primitives and identity hash, and first in the replica's slot     |     filled: references set
 * </pre>
 *
 * Each thread keeps what it has met and not filled; one that has nothing takes from a common heap, to which others give while somebody waits. All
 * wait: the walk is over. Large arrays are filled piece by piece, so what is kept stays small.
 *
 * <p>The other threads are started when the first has met so many objects that it is worth it.
 *
 * <p>What must always hold: no thread reads the pool outside its used part, whatever a damaged replica says; the first failure ends all.
 */
final class RecoveryWalk {
    /** What it goes through, and what it needs to know for that. */
    record From(String pool, Allocator allocator, ClassMapping[] mappings, Renames names, boolean recount, boolean evolved) {}

    final From from;
    /** End of the used part. */
    final long frontier = Nvm.getLong(Layout.FRONTIER);
    /** Objects entered in one passage of the gate, behind which others may have to wait. */
    private static final int SHOWN_AT_ONCE = 1 << 12;

    /** What has been met: while the walk runs, every object; then those whose identity hash leads there. */
    final PositionTable met = new PositionTable();
    /** It stops at every OnDemand. */
    final boolean lazily;
    /** It is beside a running program: it stops at what is loaded, too, and shows what it has made at once, by {@link #show}. */
    final boolean beside;

    private final RecoveryWorker[] workers;
    /** Those that have been started, the program's own thread among them. */
    private volatile int running = 1;
    private final Object[] turns = new Object[64];
    private IdentityTable strays;
    private volatile Throwable failure;

    /** Under the lock of this: work that anybody may take; how many wait for some; whether there will be none. */
    private long[] heap = new long[256];
    private int heapSize;
    private int waiting;
    /** Somebody waits, and there is nothing to take. */
    private volatile boolean hungry;
    private boolean over;
    /** Under the lock of this: what another thread than the program's needs to be run. */
    private final List<Errand> errands = new ArrayList<>();
    /** Whether there may be some. */
    private volatile boolean asked;

    RecoveryWalk(From from, boolean lazily, boolean beside) {
        this.from = from;
        this.lazily = lazily;
        this.beside = beside;
        for (int i = 0; i < turns.length; i++) {
            turns[i] = new Object();
        }
        workers = new RecoveryWorker[Math.max(1, Runtime.getRuntime().availableProcessors())];
        workers[0] = new RecoveryWorker(this);
    }

    /**
     * Brings back what the values of the roots reach.
     *
     * @param rootNames for messages
     * @return the objects of the roots
     */
    Object[] run(long[] values, String[] rootNames) {
        Object[] objects = new Object[values.length];
        try {
            for (int i = 0; i < values.length; i++) {
                objects[i] = values[i] == 0 ? null : workers[0].root(values[i], rootNames[i]);
            }
        } catch (Throwable e) {
            fail(e);
        }
        workers[0].run();
        boolean interrupted = false;
        for (int i = 1; i < running; i++) {
            for (;;) {
                try {
                    workers[i].join();
                    break;
                } catch (InterruptedException e) {
                    interrupted = true;
                }
            }
        }
        if (interrupted) {
            Thread.currentThread().interrupt();
        }
        throwFailure();
        return objects;
    }

    /** The first thread has found that there is much to do. */
    synchronized void callOthers() {
        if (running > 1 || over) {
            return;
        }
        try {
            for (int i = 1; i < workers.length; i++) {
                workers[i] = new RecoveryWorker(this);
                workers[i].setDaemon(true);
                workers[i].start();
                running = i + 1;
            }
        } catch (OutOfMemoryError e) {
            // The system gives no more threads: those that there are will do it.
        }
    }

    /** The object whose replica is at {@code position}, if this walk has made it, or has stopped at it; else null. */
    Object at(long position) {
        Object o = workers[0].find(position);
        return o != null || beside ? o : strays().at(Nvm.getInt(position + Layout.HASH), position);
    }

    /** What was made is all that is durable from now on. */
    void install() {
        Replicas.install(met, objects() - strayed(), strays());
    }

    /**
     * What was made is durable, too, from now on; if that fails for want of room it is to be hidden again.
     *
     * @param mayBeHidden also if it does not fail
     */
    void show(boolean mayBeHidden) {
        for (int i = 0; i < running; i++) {
            workers[i].constants.leavePositions();
            Strays strays = workers[i].strays;
            strays.leavePositions();
            for (int from = 0; from < strays.count(); from += SHOWN_AT_ONCE) {
                int gate = Gate.enter();
                try {
                    strays.show(from, Math.min(strays.count(), from + SHOWN_AT_ONCE));
                } finally {
                    Gate.exit(gate);
                }
            }
        }
        int gate = Gate.enter();
        try {
            Replicas.add(met, mayBeHidden);
        } finally {
            Gate.exit(gate);
        }
    }

    /** The constants, too; they are never hidden again, for others may have found them by then. */
    void showConstants() {
        int gate = Gate.enter();
        try {
            for (int i = 0; i < running; i++) {
                workers[i].constants.show(0, workers[i].constants.count());
            }
        } finally {
            Gate.exit(gate);
        }
    }

    /** Nothing of what was made is durable any more; nobody has seen it. */
    void hide() {
        int gate = Gate.enter();
        try {
            for (int i = 0; i < running; i++) {
                workers[i].strays.hide();
            }
            Replicas.withdraw(met);
        } finally {
            Gate.exit(gate);
        }
    }

    /** Objects that were made and cannot be found by their positions: more than the table has, if two replicas stand for one constant. */
    long strayed() {
        long n = 0;
        for (int i = 0; i < running; i++) {
            n += workers[i].strays.count() + workers[i].constants.count();
        }
        return n;
    }

    /** Objects that were made. */
    long objects() {
        long n = 0;
        for (int i = 0; i < running; i++) {
            n += workers[i].made;
        }
        return n;
    }

    /** For whoever makes the large object at {@code at}. */
    Object turn(long at) {
        return turns[(int) (at / Layout.SEGMENT) & turns.length - 1];
    }

    /** What has another identity hash than the saved one. */
    List<RecoveryWorker.Rehashed> rehashed() {
        List<RecoveryWorker.Rehashed> all = new ArrayList<>();
        for (int i = 0; i < running; i++) {
            all.addAll(workers[i].rehashed);
        }
        return all;
    }

    /** See {@link RecoveryWorker.Gone}. */
    List<RecoveryWorker.Gone> gone() {
        List<RecoveryWorker.Gone> all = new ArrayList<>();
        for (int i = 0; i < running; i++) {
            all.addAll(workers[i].gone);
        }
        return all;
    }

    /** Objects that {@link Repairs} looks at. */
    List<Object> suspects() {
        List<Object> all = new ArrayList<>();
        for (int i = 0; i < running; i++) {
            all.addAll(workers[i].suspects);
        }
        return all;
    }

    /** OnDemands that were met and not followed. */
    List<OnDemand<?>> onDemands() {
        List<OnDemand<?>> all = new ArrayList<>();
        for (int i = 0; i < running; i++) {
            all.addAll(workers[i].onDemands);
        }
        return all;
    }

    /** Position of what the {@code i}-th of them refers to; 0: null. */
    long behind(int i) {
        int w = 0;
        while (i >= workers[w].onDemands.size()) {
            i -= workers[w++].onDemands.size();
        }
        return workers[w].behind(i);
    }

    // ---- failure

    void fail(Throwable e) {
        synchronized (this) {
            if (failure == null) {
                failure = e;
            }
            over = true;
            notifyAll();
        }
    }

    boolean failed() {
        return failure != null;
    }

    private void throwFailure() {
        Throwable e = failure;
        if (e instanceof PoolException) {
            throw (PoolException) e;
        }
        if (e instanceof Error) {
            throw (Error) e;
        }
        if (e != null) {
            throw new PoolException(Reason.DAMAGED, from.pool + ": recovery met " + e + "; restore the file from a copy", e);
        }
    }

    // ---- code of the program

    /** See {@link #take}. */
    static final int ASKED = -1;

    /**
     * Has code of the program run, such as a class' initialiser before the first instance is made. The program's thread does that for all, one after the other: it is
     * the program's code, which may look at its thread and may call what the opening of the pool has locked; and two threads, each in the initialiser of
     * a class that the other one's needs, would wait for ever. Who waits here is not among those that wait for work: the walk goes on.
     */
    void byProgram(Errand e, RecoveryWorker worker) {
        if (worker == workers[0]) {
            e.run();
            return;
        }
        synchronized (this) {
            if (!e.isDone()) {
                errands.add(e);
                asked = true;
                notifyAll();
            }
            while (!e.isDone()) {
                if (failure != null) {
                    throw new IllegalStateException("the walk has failed");
                }
                await();
            }
        }
    }

    /** Whether another thread waits for what {@code worker} alone does. */
    boolean isAsked(RecoveryWorker worker) {
        return asked && worker == workers[0];
    }

    /** Runs what the others have asked for. */
    void answer() {
        for (;;) {
            Errand e;
            synchronized (this) {
                if (errands.isEmpty()) {
                    asked = false;
                    return;
                }
                e = errands.remove(errands.size() - 1);
            }
            e.run();
            synchronized (this) {
                notifyAll();
            }
        }
    }

    // ---- work

    boolean hungry() {
        return hungry;
    }

    /** Gives the first {@code n} items of {@code work} to whoever waits. */
    synchronized void give(long[] work, int n) {
        if (heapSize + n > heap.length) {
            heap = Arrays.copyOf(heap, Math.max(2 * heap.length, heapSize + n));
        }
        System.arraycopy(work, 0, heap, heapSize, n);
        heapSize += n;
        hungry = false;
        notifyAll();
    }

    /** Fills {@code into} with up to its length of work; 0 if the walk is over, {@link #ASKED} if the program's thread is to {@link #answer} first. */
    synchronized int take(long[] into, RecoveryWorker worker) {
        waiting++;
        while (heapSize == 0 && !over) {
            if (isAsked(worker)) {
                waiting--;
                return ASKED;
            }
            if (waiting == running) {
                over = true;
                notifyAll();
                break;
            }
            hungry = true;
            await();
        }
        if (over) {
            return 0;
        }
        waiting--;
        int n = Math.min(into.length, Math.max(1, heapSize / running));
        System.arraycopy(heap, heapSize - n, into, 0, n);
        heapSize -= n;
        hungry = heapSize == 0 && waiting > 0;
        return n;
    }

    private void await() {
        try {
            wait();
        } catch (InterruptedException e) {
            // Only the program's thread can be interrupted, and what it does here must be done to the end: told again when it is.
            workers[0].interruptedWhileWaiting = true;
        }
    }

    // ---- when all has been met

    /** Pieces of the table that are being marked or are; those that are. */
    private int nextPiece;
    private int marked;

    /** What one thread does of it, until all is done: the blocks in which objects were met are in use. */
    void markBlocks() {
        for (int piece = unmarked(); piece >= 0; piece = unmarked()) {
            long twice = met.markAll(from.allocator, piece);
            if (twice != 0) {
                throw new PoolException(Reason.DAMAGED, from.pool + ": in the segment at " + twice + " a record of the pool is an object, too; restore the file from a copy");
            }
            isMarked();
        }
    }

    private synchronized int unmarked() {
        if (nextPiece < met.pieces()) {
            return nextPiece++;
        }
        while (marked < met.pieces() && failure == null) {
            await();
        }
        return -1;
    }

    private synchronized void isMarked() {
        marked++;
        if (marked == met.pieces()) {
            notifyAll();
        }
    }

    /** The table for objects that cannot be found by their positions; made when all have been met. */
    synchronized IdentityTable strays() {
        if (strays == null) {
            strays = new IdentityTable(strayed());
        }
        return strays;
    }
}
