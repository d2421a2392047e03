package io.towa.graph;

import io.towa.PoolException;
import io.towa.PoolException.Reason;
import io.towa.pool.Allocator;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;

/**
 * The walk over all replicas that the roots reach, by several threads: what they share.
 *
 * <pre>
 *   a replica is    met: claimed by a mark, object made, identity hash given     |     filled: values set, referents met
 * </pre>
 *
 * Each thread keeps what it has met and not filled; one that has nothing takes from a common heap, to which others give while somebody waits. All
 * wait: the walk is over. Then the same threads order what was found by the shards of {@link Replicas} and make their tables. Large arrays are
 * filled piece by piece, so what is kept stays small.
 *
 * <p>What must always hold: no thread reads the pool outside its used part, whatever a damaged replica says; the first failure ends all.
 */
final class RecoveryWalk {
    final String pool;
    final Allocator allocator;
    final ClassMapping[] mappings;
    final Marks marks;
    final Renames names;
    final long frontier;
    final Found found = new Found();

    private final RecoveryWorker[] workers;
    private final Replicas.Loading[] tables = new Replicas.Loading[Replicas.SHARDS];
    private volatile Throwable failure;

    /** Under the lock of this: work that anybody may take; how many wait for some; whether there will be none. */
    private long[] heap = new long[256];
    private int heapSize;
    private int waiting;
    /** Somebody waits, and there is nothing to take. */
    private volatile boolean hungry;
    private boolean over;

    RecoveryWalk(String pool, Allocator allocator, ClassMapping[] mappings, Marks marks, Renames names, long frontier) {
        this.pool = pool;
        this.allocator = allocator;
        this.mappings = mappings;
        this.marks = marks;
        this.names = names;
        this.frontier = frontier;
        workers = new RecoveryWorker[Math.max(1, Runtime.getRuntime().availableProcessors())];
        for (int i = 0; i < workers.length; i++) {
            workers[i] = new RecoveryWorker(this);
        }
    }

    /**
     * Brings back what the values of the roots reach, and shows it in {@link Replicas}.
     *
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
        for (int i = 1; i < workers.length && failure == null; i++) {
            workers[i].setDaemon(true);
            workers[i].start();
        }
        workers[0].run();
        boolean interrupted = false;
        for (int i = 1; i < workers.length; i++) {
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

    /** What was made is seen as durable from now on. */
    void install() {
        Replicas.install(tables);
    }

    /** What has another identity hash than the saved one. */
    List<RecoveryWorker.Rehashed> rehashed() {
        List<RecoveryWorker.Rehashed> all = new ArrayList<>();
        for (int i = 0; i < workers.length; i++) {
            all.addAll(workers[i].rehashed);
        }
        return all;
    }

    /** Objects that {@link Repairs} looks at. */
    List<Object> suspects() {
        List<Object> all = new ArrayList<>();
        for (int i = 0; i < workers.length; i++) {
            all.addAll(workers[i].suspects);
        }
        return all;
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
            throw new PoolException(Reason.DAMAGED, pool + ": recovery met " + e + "; restore the file from a copy", e);
        }
    }

    // ---- work

    boolean hungry() {
        return hungry;
    }

    /** Gives the first {@code n} longs of {@code work} to whoever waits. */
    synchronized void give(long[] work, int n) {
        if (heapSize + n > heap.length) {
            heap = Arrays.copyOf(heap, Math.max(2 * heap.length, heapSize + n));
        }
        System.arraycopy(work, 0, heap, heapSize, n);
        heapSize += n;
        hungry = false;
        notifyAll();
    }

    /** Fills {@code into} with up to its length of work; 0 if the walk is over. */
    synchronized int take(long[] into) {
        waiting++;
        while (heapSize == 0 && !over) {
            if (waiting == workers.length) {
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
        // An even number: an item is two longs.
        int n = Math.min(into.length, Math.max(2, heapSize / workers.length & -2));
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

    // ---- tables

    /** Chunks that are being arranged or are; those that are; shards whose table is made or being made. */
    private int nextChunk;
    private int arranged;
    private int nextShard;

    /** A chunk that nobody arranges yet; null when all are arranged, or something failed. */
    private synchronized Found.Chunk unarranged() {
        if (nextChunk < found.chunks()) {
            return found.chunk(nextChunk++);
        }
        while (arranged < found.chunks() && failure == null) {
            await();
        }
        return null;
    }

    private synchronized void isArranged() {
        arranged++;
        if (arranged == found.chunks()) {
            notifyAll();
        }
    }

    /** A shard whose table nobody makes yet; -1 if there is none. */
    private synchronized int shard() {
        return nextShard < Replicas.SHARDS ? nextShard++ : -1;
    }

    /** What one thread does of it: all of them arrange chunks, then they make tables. */
    void makeTables() {
        for (Found.Chunk chunk = unarranged(); chunk != null; chunk = unarranged()) {
            chunk.arrange();
            isArranged();
        }
        Found.Shard entries = new Found.Shard();
        for (int shard = shard(); shard >= 0 && !failed(); shard = shard()) {
            found.gather(shard, entries);
            tables[shard] = new Replicas.Loading(entries);
        }
    }
}
