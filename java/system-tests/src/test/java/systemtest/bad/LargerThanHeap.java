package systemtest.bad;

import io.towa.DurableRoot;
import io.towa.OnDemand;
import io.towa.Towa;
import io.towa.TowaOptions;
import java.nio.file.Path;
import java.util.HashMap;
import java.util.List;
import java.util.Map;

/**
 * {@code LargerThanHeap fill|use FILE}: maps behind OnDemands, more than the heap of {@code use} holds. It loads them until the heap is full, several times; what was refused for
 * that can be had when there is room again, and nothing differs.
 */
public final class LargerThanHeap {
    private static final int PARTS = 40;
    private static final int ENTRIES = 2000;

    @DurableRoot
    private static OnDemand<?>[] parts;

    private LargerThanHeap() {}

    public static void main(String[] args) {
        Towa.open(Path.of(args[1]), TowaOptions.DEFAULT.withCapacity(512 << 20));
        if (args[0].equals("fill")) {
            OnDemand<?>[] all = new OnDemand<?>[PARTS];
            for (int i = 0; i < PARTS; i++) {
                all[i] = new OnDemand<>(part(i));
            }
            parts = all;
            System.out.println("done");
            return;
        }
        // All that is linked at its first use is linked now, and not when the heap is full.
        parts[0] = parts[0];
        unlink(0, 0);
        Towa.verify();
        int refused = 0;
        for (int from = 0; from < PARTS; ) {
            int loaded = load(from);
            refused += from + loaded < PARTS ? 1 : 0;
            if (loaded == 0) {
                throw new AssertionError("there is no room for part " + from + " alone");
            }
            // What compares needs some room itself.
            unlink(from, from + loaded - loaded / 4);
            List<String> wrong = Towa.verify();
            if (!wrong.isEmpty()) {
                throw new AssertionError(wrong.toString());
            }
            unlink(from + loaded - loaded / 4, from + loaded);
            from += loaded;
        }
        if (refused == 0) {
            throw new AssertionError("all fits into the heap");
        }
        Towa.close();
        System.out.println("done");
    }

    private static void unlink(int from, int to) {
        for (int i = from; i < to; i++) {
            parts[i] = null;
        }
        Towa.collect();
        System.gc();
    }

    /** How many parts from {@code from} on there is room for. */
    private static int load(int from) {
        int loaded = 0;
        try {
            while (from + loaded < PARTS) {
                check(from + loaded, (Map<?, ?>) parts[from + loaded].get());
                loaded++;
            }
        } catch (OutOfMemoryError e) {
            // That part is for the next time, whether its holder has it or not: looking at it takes room, too.
        }
        return loaded;
    }

    private static Map<Object, Object> part(int i) {
        Map<Object, Object> m = new HashMap<>();
        for (int k = 0; k < ENTRIES; k++) {
            m.put("key " + k, new int[][] {{i, k}, new int[200]});
        }
        return m;
    }

    private static void check(int i, Map<?, ?> m) {
        if (m.size() != ENTRIES) {
            throw new AssertionError("part " + i + " has " + m.size());
        }
        for (Map.Entry<?, ?> e : m.entrySet()) {
            int[] numbers = ((int[][]) e.getValue())[0];
            if (numbers[0] != i || !e.getKey().equals("key " + numbers[1])) {
                throw new AssertionError("part " + i + ", " + e.getKey());
            }
        }
    }
}
