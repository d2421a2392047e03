package stress;

/** What the races are about. */
final class Node {
    int x;
    int y;
    Node next;
    volatile int v;
    volatile Node w;

    /** Its replica has all that DRAM has; and so have the nodes that it refers to. */
    static boolean saved(Node n) {
        for (int depth = 0; n != null; n = n.next, depth++) {
            if (depth > 8) {
                return true;
            }
            if (Pool.position(n) <= 0 || Pool.savedInt(n, "x") != n.x || Pool.savedInt(n, "y") != n.y || Pool.savedInt(n, "v") != n.v
                || !Pool.saves(n, "next", n.next) || !Pool.saves(n, "w", n.w)) {
                return false;
            }
            if (n.w != null && n.w != n && (Pool.savedInt(n.w, "x") != n.w.x || Pool.savedInt(n.w, "v") != n.w.v)) {
                return false;
            }
        }
        return true;
    }
}
