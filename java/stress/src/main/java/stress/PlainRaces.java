package stress;

import org.openjdk.jcstress.annotations.Actor;
import org.openjdk.jcstress.annotations.Arbiter;
import org.openjdk.jcstress.annotations.Expect;
import org.openjdk.jcstress.annotations.JCStressTest;
import org.openjdk.jcstress.annotations.Outcome;
import org.openjdk.jcstress.annotations.State;
import org.openjdk.jcstress.infra.results.I_Result;

/**
 * The thesis' races (chapter 4) with plain stores. Each iteration has fresh objects, white at first; one actor makes them durable by hanging them into a durable
 * array. (Two actors each: a machine of two processors runs no more.) When all are done, the replica must have what DRAM has: 1.
 */
public class PlainRaces {
    /** Race 1: two threads promote one object. */
    @JCStressTest
    @Outcome(id = "1", expect = Expect.ACCEPTABLE, desc = "one replica, complete")
    @Outcome(id = "2", expect = Expect.ACCEPTABLE, desc = "dropped since")
    @State
    public static class TwoPromoters {
        final Node n = new Node();

        @Actor
        public void first() {
            Pool.anchor(0, n);
        }

        @Actor
        public void second() {
            Pool.anchor(1, n);
        }

        @Arbiter
        public void look(I_Result r) {
            r.r1 = Pool.verdict(Node.saved(n), n);
        }
    }

    /** Race 2: a store that began while the object was white; race 3: a store during the copy. */
    @JCStressTest
    @Outcome(id = "1", expect = Expect.ACCEPTABLE, desc = "not lost")
    @Outcome(id = "2", expect = Expect.ACCEPTABLE, desc = "dropped since")
    @State
    public static class StoreWhilePromoted {
        final Node n = new Node();

        @Actor
        public void promote() {
            Pool.anchor(0, n);
        }

        @Actor
        public void store() {
            n.x = 1;
            n.y = 2;
            n.x = 3;
        }

        @Arbiter
        public void look(I_Result r) {
            r.r1 = Pool.verdict(Node.saved(n) && n.x == 3 && n.y == 2, n);
        }
    }

    /** Two threads store to one field meanwhile: whichever is last in DRAM must be last in the replica. */
    @JCStressTest
    @Outcome(id = "1", expect = Expect.ACCEPTABLE, desc = "the replica has what DRAM has")
    @Outcome(id = "2", expect = Expect.ACCEPTABLE, desc = "dropped since")
    @State
    public static class TwoStores {
        final Node n = new Node();

        @Actor
        public void one() {
            n.x = 1;
            Pool.anchor(0, n);
            n.y = 1;
        }

        @Actor
        public void two() {
            n.x = 2;
            n.y = 2;
        }

        @Arbiter
        public void look(I_Result r) {
            r.r1 = Pool.verdict(Node.saved(n), n);
        }
    }

    /** A reference is stored while its holder is promoted: what it refers to must come along. */
    @JCStressTest
    @Outcome(id = "1", expect = Expect.ACCEPTABLE, desc = "the referent is durable, and linked")
    @Outcome(id = "2", expect = Expect.ACCEPTABLE, desc = "dropped since")
    @State
    public static class ReferenceWhilePromoted {
        final Node n = new Node();
        final Node m = new Node();

        @Actor
        public void promote() {
            Pool.anchor(0, n);
        }

        @Actor
        public void store() {
            n.next = m;
            m.x = 5;
        }

        @Arbiter
        public void look(I_Result r) {
            r.r1 = Pool.verdict(Node.saved(n) && n.next == m, n);
        }
    }

    /** Groups that interfere: two graphs that share their end, which is written to. */
    @JCStressTest
    @Outcome(id = "1", expect = Expect.ACCEPTABLE, desc = "both are complete")
    @Outcome(id = "2", expect = Expect.ACCEPTABLE, desc = "dropped since")
    @State
    public static class OverlappingGraphs {
        final Node a = new Node();
        final Node b = new Node();
        final Node shared = new Node();
        final Node end = new Node();

        public OverlappingGraphs() {
            a.next = shared;
            b.next = shared;
            shared.next = end;
            end.w = a;
        }

        @Actor
        public void first() {
            shared.y = 8;
            Pool.anchor(0, a);
            end.y = 3;
        }

        @Actor
        public void second() {
            end.x = 7;
            Pool.anchor(1, b);
            shared.x = 4;
        }

        @Arbiter
        public void look(I_Result r) {
            r.r1 = Pool.verdict(Node.saved(a) && Node.saved(b), a, b);
        }
    }

    @JCStressTest
    @Outcome(id = "1", expect = Expect.ACCEPTABLE, desc = "no element lost")
    @Outcome(id = "2", expect = Expect.ACCEPTABLE, desc = "dropped since")
    @State
    public static class Elements {
        final int[] a = new int[20];
        final Object[] o = {a, null};
        final Node n = new Node();

        @Actor
        public void promote() {
            Pool.anchor(0, o);
        }

        @Actor
        public void store() {
            a[3] = 1;
            o[1] = n;
            System.arraycopy(a, 0, a, 10, 5);
        }

        @Arbiter
        public void look(I_Result r) {
            r.r1 = Pool.verdict(Pool.savedInt(a, 3) == 1 && Pool.savedInt(a, 13) == 1 && Pool.saves(o, 1, n) && Pool.saves(o, 0, a), (Object) o);
        }
    }
}
