package towabench.micro;

import io.towa.DurableRoot;
import io.towa.Towa;
import io.towa.TowaOptions;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.function.ObjIntConsumer;
import towabench.Stats;

/**
 * Reads of durable objects beside reads of others, in the same JVM, by the same code: two structures built the same way, element by element
 * in turn; one of them is made durable, or neither: where a structure happens to lie in memory alone makes one several per cent slower than the other in one JVM, and
 * faster in the next.
 *
 * <pre>ReadCost POOL ROUNDS first|second|none     @read name ratio low high durable_ns plain_ns     @end</pre>
 */
public final class ReadCost {
    static final class Node {
        int number;
        Node next;
    }

    static final class Things {
        Node first;
        final int[] numbers = new int[4096];
        final Map<Integer, String> map = new HashMap<>();
        final String[] strings = new String[1024];
    }

    @DurableRoot static Things root;
    /** What is compared with the other: durable, unless neither is. */
    static Things durable;
    static long sink;

    private ReadCost() {}

    public static void main(String[] args) {
        Towa.open(Path.of(args[0]), TowaOptions.DEFAULT.withCapacity(1L << 30));
        int rounds = Integer.parseInt(args[1]);
        Things first = new Things();
        Things second = new Things();
        Node[] last = new Node[2];
        for (int i = 0; i < 4096; i++) {
            Things[] both = {first, second};
            for (int n = 0; n < 2; n++) {
                Things t = both[n];
                Node node = new Node();
                node.number = i;
                if (last[n] == null) {
                    t.first = node;
                } else {
                    last[n].next = node;
                }
                last[n] = node;
                t.numbers[i] = i;
                t.strings[i & 1023] = "string number " + i;
                t.map.put(i, t.strings[i & 1023]);
            }
        }
        last[0].next = first.first;
        last[1].next = second.first;
        durable = args[2].equals("first") ? first : second;
        Things plain = durable == first ? second : first;
        if (!args[2].equals("none")) {
            root = durable;
        }
        // Both are old, and side by side, before anything is measured.
        for (int i = 0; i < 3; i++) {
            System.gc();
        }
        compare("field", 200_000, rounds, plain, (t, k) -> fields(k, t));
        compare("array", 2_000_000, rounds, plain, (t, k) -> elements(k, t.numbers));
        compare("hashmap_get", 200_000, rounds, plain, (t, k) -> gets(k, t.map));
        compare("string", 200_000, rounds, plain, (t, k) -> strings(k, t.strings));
        System.out.println("@end");
    }

    /**
     * In turn, some hundred times; the median of each kind is taken, and of the ratios of neighbours the middle half. One piece of compiled code reads both: two copies
     * of it, inlined here and there, differ by more than what is measured.
     */
    private static void compare(String name, int n, int rounds, Things plain, ObjIntConsumer<Things> read) {
        List<Double> a = new ArrayList<>();
        List<Double> b = new ArrayList<>();
        List<Double> ratios = new ArrayList<>();
        for (int r = 0; r < rounds + 20; r++) {
            // Who is first changes, too.
            double first = time(n, r % 2 == 0 ? durable : plain, read);
            double second = time(n, r % 2 == 0 ? plain : durable, read);
            if (r >= 20) {
                a.add(r % 2 == 0 ? first : second);
                b.add(r % 2 == 0 ? second : first);
                ratios.add(a.getLast() / b.getLast());
            }
        }
        ratios.sort(null);
        System.out.println("@read " + name + " " + Stats.median(ratios) + " " + ratios.get(ratios.size() / 4) + " " + ratios.get(ratios.size() * 3 / 4) + " "
            + Stats.median(a) + " " + Stats.median(b));
    }

    private static double time(int n, Things things, ObjIntConsumer<Things> read) {
        long began = System.nanoTime();
        read.accept(things, n);
        return (System.nanoTime() - began) / (double) n;
    }

    private static void fields(int n, Things t) {
        long sum = 0;
        Node node = t.first;
        for (int i = 0; i < n; i++) {
            sum += node.number;
            node = node.next;
        }
        sink += sum;
    }

    private static void elements(int n, int[] a) {
        long sum = 0;
        for (int i = 0; i < n; i++) {
            sum += a[i & 4095];
        }
        sink += sum;
    }

    private static void gets(int n, Map<Integer, String> map) {
        long sum = 0;
        for (int i = 0; i < n; i++) {
            sum += map.get(i * 31 & 4095).length();
        }
        sink += sum;
    }

    private static void strings(int n, String[] strings) {
        long sum = 0;
        for (int i = 0; i < n; i++) {
            String s = strings[i & 1023];
            sum += s.charAt(i & 7) + s.length();
        }
        sink += sum;
    }
}
