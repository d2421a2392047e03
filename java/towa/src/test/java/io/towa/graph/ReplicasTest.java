package io.towa.graph;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.towa.pool.Layout;
import java.util.concurrent.CyclicBarrier;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;

/** Entries of objects with and without an identity hash, and who has one when two threads enter it. */
class ReplicasTest {
    private static final int BYTES = 48;
    private static final long HERE = Layout.HEAP + 48;
    private static final long THERE = Layout.HEAP + 96;

    @BeforeEach
    @AfterEach
    void empty() {
        Replicas.reset(0);
    }

    private static Object hashed() {
        Object o = new Object();
        System.identityHashCode(o);
        return o;
    }

    private static void throughItsLife(Object o, long position, long otherPosition) {
        assertEquals(0, Replicas.find(o));
        long grey = Replicas.grey(position, 7);
        assertEquals(0, Replicas.insert(o, grey, BYTES));
        assertEquals(grey, Replicas.find(o));
        assertEquals(grey, Replicas.insert(o, Replicas.grey(otherPosition, 8), BYTES));
        assertEquals(1, Replicas.size());
        Replicas.blue(o, position);
        assertEquals(position, Replicas.find(o));
        assertEquals(position, Replicas.insert(o, Replicas.grey(otherPosition, 8), BYTES));
        assertEquals(1, Replicas.size());
        Replicas.remove(o, position);
        assertEquals(0, Replicas.find(o));
        assertEquals(0, Replicas.size());
    }

    @Test
    void anObjectWithoutHashGetsOneThatLeadsToItsReplica() {
        Object o = new Object();
        throughItsLife(o, HERE, THERE);
        assertEquals(PositionTable.hashAt(HERE), System.identityHashCode(o));
    }

    @Test
    void anObjectKeepsTheHashThatItHas() {
        Object o = hashed();
        int hash = System.identityHashCode(o);
        throughItsLife(o, HERE, THERE);
        assertEquals(hash, System.identityHashCode(o));
    }

    /** Its hash leads to the old replica, where another object's is by now; and once more to where it was at first. */
    @Test
    void anObjectThatBecomesDurableAgain() {
        Object o = new Object();
        throughItsLife(o, HERE, THERE);
        Object next = new Object();
        assertEquals(0, Replicas.insert(next, HERE, BYTES));
        assertEquals(System.identityHashCode(o), System.identityHashCode(next));
        assertEquals(0, Replicas.find(o));
        assertEquals(0, Replicas.insert(o, THERE, BYTES));
        assertEquals(THERE, Replicas.find(o));
        assertEquals(HERE, Replicas.find(next));
        Replicas.remove(next, HERE);
        Replicas.remove(o, THERE);
        throughItsLife(o, HERE, THERE);
    }

    @Test
    void whileItIsLocked() {
        Object o = new Object();
        synchronized (o) {
            throughItsLife(o, HERE, THERE);
        }
        throughItsLife(o, HERE, THERE);
    }

    @Test
    void beyondWhatAHashCanSay() {
        throughItsLife(new Object(), 48L << 30, 49L << 30);
    }

    /** Of two that enter one object one does; the other learns of it. */
    @Test
    void oneOfTwo() throws Exception {
        int rounds = 20_000;
        Object[] objects = new Object[rounds];
        for (int i = 0; i < rounds; i++) {
            objects[i] = i % 4 == 3 ? hashed() : new Object();
        }
        long[][] had = new long[2][rounds];
        long[][] seen = new long[2][rounds];
        CyclicBarrier together = new CyclicBarrier(2);
        Thread[] threads = new Thread[2];
        for (int t = 0; t < 2; t++) {
            int me = t;
            threads[t] = Thread.ofPlatform().start(() -> {
                try {
                    for (int i = 0; i < rounds; i++) {
                        if (i % 64 == 0) {
                            together.await();
                        }
                        had[me][i] = Replicas.insert(objects[i], Replicas.grey(position(i, me), me), BYTES);
                        seen[me][i] = Replicas.find(objects[i]);
                    }
                } catch (Exception e) {
                    throw new AssertionError(e);
                }
            });
        }
        for (Thread thread : threads) {
            thread.join();
        }
        int[] won = new int[2];
        for (int i = 0; i < rounds; i++) {
            int winner = had[0][i] == 0 ? 0 : 1;
            won[winner]++;
            long word = Replicas.grey(position(i, winner), winner);
            assertEquals(0, had[winner][i]);
            assertEquals(word, had[1 - winner][i], "object " + i);
            assertEquals(word, seen[0][i]);
            assertEquals(word, seen[1][i]);
            assertEquals(word, Replicas.find(objects[i]));
        }
        assertEquals(rounds, Replicas.size());
        assertTrue(won[0] > 0 && won[1] > 0, "never at once: " + won[0] + ", " + won[1]);
    }

    private static long position(int i, int thread) {
        // A segment of 85 blocks, and another thread's segments are other ones.
        return Layout.HEAP + (2L * (i / 85) + thread) * Layout.SEGMENT + i % 85 * BYTES;
    }
}
