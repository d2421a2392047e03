package systemtest.kill;

import io.towa.DurableRoot;
import io.towa.Towa;
import java.nio.file.Path;
import java.util.HashMap;
import java.util.Hashtable;
import java.util.IdentityHashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;

/** Fills maps in order and counts; at its start every entry that was counted must be there. Small maps, made anew often: most stores are of growing and turning. */
public final class GrowingMaps {
    private static final int MOST = 5000;

    /** A generation: the maps, and how many entries each of them has at least. */
    static final class Generation {
        final HashMap<Object, String> hash = new HashMap<>();
        final TreeMap<Integer, String> tree = new TreeMap<>();
        final Hashtable<Object, String> table = new Hashtable<>();
        final IdentityHashMap<Object, String> identity = new IdentityHashMap<>();
        final Sizes sizes = new Sizes();
        final Object[] keys = new Object[MOST];
        int counted;
        int removed;
    }

    @DurableRoot
    private static Generation now;

    /** Few different hash codes: bins become trees. */
    record Key(int i) implements Comparable<Key> {
        @Override
        public int hashCode() {
            return i / 16;
        }

        @Override
        public int compareTo(Key k) {
            return Integer.compare(i, k.i);
        }
    }

    private GrowingMaps() {}

    public static void main(String[] args) {
        Towa.open(Path.of(args[0]));
        if (now == null) {
            now = new Generation();
        }
        String wrong = check(now);
        List<String> differs = wrong == null ? Towa.verify() : List.of(wrong);
        System.out.println(differs.isEmpty() ? "begin " + now.counted : "WRONG " + differs);
        for (;;) {
            fill(now);
            now = new Generation();
        }
    }

    private static void fill(Generation g) {
        for (int i = g.counted; i < MOST; i++) {
            Key key = new Key(i);
            g.keys[i] = key;
            g.hash.put(key, "h" + i);
            g.tree.put(i, "t" + i);
            g.table.put(key, "b" + i);
            g.identity.put(key, "i" + i);
            g.counted = i + 1;
            g.sizes.step(i);
            if (i % 3 == 2) {
                // What is about to go may be there or not.
                g.removed = i;
                g.hash.remove(new Key(i - 1));
                g.tree.remove(i - 1);
                g.table.remove(new Key(i - 1));
                g.identity.remove(g.keys[i - 1]);
            }
        }
    }

    private static String check(Generation g) {
        for (int i = 0; i < g.counted; i++) {
            if (i % 3 == 1 && i < g.removed + 1) {
                continue;
            }
            if (!("h" + i).equals(g.hash.get(new Key(i)))) {
                return "HashMap lacks " + i + " of " + g.counted;
            }
            if (!("t" + i).equals(g.tree.get(i))) {
                return "TreeMap lacks " + i + " of " + g.counted;
            }
            if (!("b" + i).equals(g.table.get(new Key(i)))) {
                return "Hashtable lacks " + i + " of " + g.counted;
            }
            if (!("i" + i).equals(g.identity.get(g.keys[i]))) {
                return "IdentityHashMap lacks " + i + " of " + g.counted;
            }
        }
        return g.sizes.check();
    }
}
