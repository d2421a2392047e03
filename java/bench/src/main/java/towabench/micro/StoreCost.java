package towabench.micro;

import io.towa.Durability;
import io.towa.DurableRoot;
import io.towa.Towa;
import io.towa.TowaOptions;
import java.nio.file.Path;
import java.util.HashMap;
import java.util.Map;
import java.util.concurrent.atomic.AtomicLong;

/**
 * What one store to a durable object costs, by kind, and the same to an object that is not durable, in the same JVM.
 *
 * <pre>StoreCost POOL process|power OPERATIONS     @store name durable_ns plain_ns     @end</pre>
 */
public final class StoreCost {
    static final class Node {
        int number;
        volatile int shared;
        Node next;
    }

    static final class Things {
        final Node node = new Node();
        final int[] numbers = new int[1024];
        final Object[] slots = new Object[1024];
        final Node[] targets = {new Node(), new Node()};
        final AtomicLong counter = new AtomicLong();
        final Map<Integer, Integer> map = new HashMap<>();
        final Integer[] values = {1000, 2000};

        Things() {
            // The values and targets are durable with the rest; a store names one of them.
            for (int i = 0; i < 4096; i++) {
                map.put(i + 1000, values[i & 1]);
            }
        }
    }

    @DurableRoot static Things durable;

    private StoreCost() {}

    public static void main(String[] args) {
        TowaOptions how = TowaOptions.DEFAULT.withCapacity(2L << 30);
        Towa.open(Path.of(args[0]), args[1].equals("power") ? how.withDurability(Durability.POWER) : how);
        int n = Integer.parseInt(args[2]);
        Things plain = new Things();
        durable = new Things();
        measure(n, plain, durable);
        System.out.println("@guarantee " + Towa.guarantee());
        Towa.close();
        System.out.println("@end");
    }

    private static void measure(int n, Things plain, Things durable) {
        int few = Math.max(1000, n / 10);
        print("int_field", Clock.nanos(n, 5, k -> ints(k, durable.node)), Clock.nanos(n, 5, k -> ints(k, plain.node)));
        print("reference_field", Clock.nanos(n, 5, k -> references(k, durable)), Clock.nanos(n, 5, k -> references(k, plain)));
        print("array_element", Clock.nanos(n, 5, k -> elements(k, durable.numbers)), Clock.nanos(n, 5, k -> elements(k, plain.numbers)));
        print("reference_element", Clock.nanos(n, 5, k -> slots(k, durable)), Clock.nanos(n, 5, k -> slots(k, plain)));
        print("volatile_field", Clock.nanos(n, 5, k -> volatiles(k, durable.node)), Clock.nanos(n, 5, k -> volatiles(k, plain.node)));
        print("atomic_increment", Clock.nanos(n, 5, k -> atomics(k, durable.counter)), Clock.nanos(n, 5, k -> atomics(k, plain.counter)));
        print("hashmap_put_replace", Clock.nanos(n, 5, k -> replace(k, durable)), Clock.nanos(n, 5, k -> replace(k, plain)));
        print("new_object_linked", Clock.nanos(few, 5, k -> link(k, durable.node)), Clock.nanos(few, 5, k -> link(k, plain.node)));
        print("hashmap_put_new", Clock.nanos(few, 5, k -> put(k, durable.map)), Clock.nanos(few, 5, k -> put(k, plain.map)));
    }

    private static void print(String name, double durable, double plain) {
        System.out.println("@store " + name + " " + durable + " " + plain);
    }

    private static void ints(int n, Node node) {
        for (int i = 0; i < n; i++) {
            node.number = i;
        }
    }

    private static void references(int n, Things t) {
        for (int i = 0; i < n; i++) {
            t.node.next = t.targets[i & 1];
        }
    }

    private static void elements(int n, int[] a) {
        for (int i = 0; i < n; i++) {
            a[i & 1023] = i;
        }
    }

    private static void slots(int n, Things t) {
        for (int i = 0; i < n; i++) {
            t.slots[i & 1023] = t.targets[i & 1];
        }
    }

    private static void volatiles(int n, Node node) {
        for (int i = 0; i < n; i++) {
            node.shared = i;
        }
    }

    private static void atomics(int n, AtomicLong counter) {
        for (int i = 0; i < n; i++) {
            counter.incrementAndGet();
        }
    }

    private static void replace(int n, Things t) {
        for (int i = 0; i < n; i++) {
            t.map.put((i & 4095) + 1000, t.values[i >> 12 & 1]);
        }
    }

    private static void link(int n, Node node) {
        for (int i = 0; i < n; i++) {
            Node fresh = new Node();
            fresh.number = i;
            node.next = fresh;
        }
    }

    /** New entries, key and value with them; taken out again in blocks, so that the map does not grow. */
    private static void put(int n, Map<Integer, Integer> map) {
        for (int i = 0; i < n; i++) {
            map.put(100_000 + i, i + 100_000);
            if ((i & 1023) == 1023) {
                for (int k = i - 1023; k <= i; k++) {
                    map.remove(100_000 + k);
                }
            }
        }
    }
}
