package stress;

import java.lang.invoke.MethodHandles;
import java.lang.invoke.VarHandle;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicReference;
import org.openjdk.jcstress.annotations.Actor;
import org.openjdk.jcstress.annotations.Arbiter;
import org.openjdk.jcstress.annotations.Expect;
import org.openjdk.jcstress.annotations.JCStressTest;
import org.openjdk.jcstress.annotations.Outcome;
import org.openjdk.jcstress.annotations.State;
import org.openjdk.jcstress.infra.results.I_Result;

/** The races with volatile and atomic stores, which reach the replica first and DRAM second once the object is durable. As {@link PlainRaces}. */
public class AtomicRaces {
    private static final VarHandle V;
    private static final VarHandle X;

    static {
        try {
            V = MethodHandles.lookup().findVarHandle(Node.class, "v", int.class);
            X = MethodHandles.lookup().findVarHandle(Node.class, "x", int.class);
        } catch (ReflectiveOperationException e) {
            throw new ExceptionInInitializerError(e);
        }
    }

    @JCStressTest
    @Outcome(id = "1", expect = Expect.ACCEPTABLE, desc = "not lost")
    @Outcome(id = "2", expect = Expect.ACCEPTABLE, desc = "dropped since")
    @State
    public static class VolatileWhilePromoted {
        final Node n = new Node();

        @Actor
        public void promote() {
            Pool.anchor(0, n);
        }

        @Actor
        public void store() {
            n.v = 1;
            n.v = 2;
        }

        @Arbiter
        public void look(I_Result r) {
            r.r1 = Pool.verdict(Node.saved(n) && n.v == 2, n);
        }
    }

    /** Two increments and a promotion: neither is lost, in DRAM nor in the replica. */
    @JCStressTest
    @Outcome(id = "1", expect = Expect.ACCEPTABLE, desc = "both counted, twice")
    @Outcome(id = "2", expect = Expect.ACCEPTABLE, desc = "dropped since")
    @State
    public static class Increments {
        final AtomicInteger a = new AtomicInteger();

        @Actor
        public void one() {
            Pool.anchor(0, a);
            a.incrementAndGet();
        }

        @Actor
        public void two() {
            a.incrementAndGet();
        }

        @Arbiter
        public void look(I_Result r) {
            r.r1 = Pool.verdict(a.get() == 2 && Pool.savedInt(a, "value") == 2, a);
        }
    }

    /** Of two that would set it, one does; the replica has that one. */
    @JCStressTest
    @Outcome(id = "1", expect = Expect.ACCEPTABLE, desc = "the winner is in the replica")
    @Outcome(id = "2", expect = Expect.ACCEPTABLE, desc = "dropped since")
    @State
    public static class CompareAndSet {
        final Node n = new Node();

        @Actor
        public void one() {
            Pool.anchor(0, n);
            V.compareAndSet(n, 0, 1);
        }

        @Actor
        public void two() {
            V.compareAndSet(n, 0, 2);
        }

        @Arbiter
        public void look(I_Result r) {
            r.r1 = Pool.verdict(Node.saved(n) && n.v != 0, n);
        }
    }

    /** A reference by CAS, to an object that another thread writes to and a third promotes on its own. */
    @JCStressTest
    @Outcome(id = "1", expect = Expect.ACCEPTABLE, desc = "linked, and complete")
    @Outcome(id = "2", expect = Expect.ACCEPTABLE, desc = "dropped since")
    @State
    public static class ReferenceByCas {
        final AtomicReference<Node> a = new AtomicReference<>();
        final Node n = new Node();

        @Actor
        public void link() {
            Pool.anchor(0, a);
            a.compareAndSet(null, n);
        }

        @Actor
        public void other() {
            n.x = 9;
            Pool.anchor(1, n);
        }

        @Arbiter
        public void look(I_Result r) {
            r.r1 = Pool.verdict(Pool.saves(a, "value", n) && Node.saved(n), a, n);
        }
    }

    /** Volatile references both ways between two objects that two threads promote. */
    @JCStressTest
    @Outcome(id = "1", expect = Expect.ACCEPTABLE, desc = "both linked")
    @Outcome(id = "2", expect = Expect.ACCEPTABLE, desc = "dropped since")
    @State
    public static class Crosswise {
        final Node a = new Node();
        final Node b = new Node();

        @Actor
        public void first() {
            a.w = b;
            Pool.anchor(0, a);
        }

        @Actor
        public void second() {
            b.w = a;
            Pool.anchor(1, b);
        }

        @Arbiter
        public void look(I_Result r) {
            r.r1 = Pool.verdict(Node.saved(a) && Node.saved(b) && a.w == b && b.w == a, a, b);
        }
    }

    /** A plain and an atomic store to one field. */
    @JCStressTest
    @Outcome(id = "1", expect = Expect.ACCEPTABLE, desc = "the replica has what DRAM has")
    @Outcome(id = "2", expect = Expect.ACCEPTABLE, desc = "dropped since")
    @State
    public static class PlainAndAtomic {
        final Node n = new Node();

        @Actor
        public void plain() {
            Pool.anchor(0, n);
            n.x = 1;
        }

        @Actor
        public void atomic() {
            X.getAndAdd(n, 16);
        }

        @Arbiter
        public void look(I_Result r) {
            r.r1 = Pool.verdict(Node.saved(n), n);
        }
    }

    /** As the last, on an object that is durable from the start. */
    @JCStressTest
    @Outcome(id = "1", expect = Expect.ACCEPTABLE, desc = "the replica has what DRAM has")
    @Outcome(id = "2", expect = Expect.ACCEPTABLE, desc = "dropped since")
    @State
    public static class PlainAndVolatileOfDurable {
        final Node n = new Node();

        public PlainAndVolatileOfDurable() {
            Pool.anchor(2, n);
        }

        @Actor
        public void plain() {
            V.set(n, 1);
        }

        @Actor
        public void published() {
            V.setVolatile(n, 2);
        }

        @Arbiter
        public void look(I_Result r) {
            r.r1 = Pool.verdict(Node.saved(n), n);
        }
    }
}
