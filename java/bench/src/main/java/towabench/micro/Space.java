package towabench.micro;

import io.towa.DurableRoot;
import io.towa.Towa;
import io.towa.TowaOptions;
import java.nio.file.Path;
import java.util.HashMap;
import java.util.function.IntFunction;

/**
 * What a durable object takes: bytes of the pool, and bytes of the heap beyond the object itself.
 *
 * <pre>Space POOL COUNT     @space kind objects pool_bytes heap_bytes     both per object; @end</pre>
 */
public final class Space {
    static final class Small {
        long number;
        int half;
        Small other;
    }

    record Point(int x, int y) {}

    @DurableRoot static Object[] data;

    private Space() {}

    public static void main(String[] args) {
        Towa.open(Path.of(args[0]), TowaOptions.DEFAULT.withCapacity(4L << 30));
        int count = Integer.parseInt(args[1]);
        data = new Object[1];
        data[0] = new Small();
        measure("object_32_bytes", count, i -> new Small());
        measure("record_of_two_ints", count, i -> new Point(i, i));
        measure("string_of_10_chars", count, i -> "string" + (1000 + i % 9000));
        measure("int_array_of_16", count, i -> new int[16]);
        measure("long", count, i -> Long.valueOf(1000 + i));
        measure("hashmap_of_8_entries", count / 10, i -> {
            HashMap<Integer, Integer> m = new HashMap<>();
            for (int k = 0; k < 8; k++) {
                m.put(1000 + k, 2000 + k);
            }
            return m;
        });
        System.out.println("@end");
    }

    private static void measure(String kind, int count, IntFunction<Object> make) {
        Object[] all = new Object[count];
        for (int i = 0; i < count; i++) {
            all[i] = make.apply(i);
        }
        // The array first, empty, so that only the objects are counted.
        Object[] slots = new Object[count];
        data = slots;
        Towa.collect();
        long heap = Clock.live();
        long pool = Towa.metrics().usedBytes();
        long objects = Towa.metrics().objects();
        System.arraycopy(all, 0, slots, 0, count);
        heap = Clock.live() - heap;
        pool = Towa.metrics().usedBytes() - pool;
        objects = Towa.metrics().objects() - objects;
        System.out.println("@space " + kind + " " + objects + " " + pool / (double) objects + " " + heap / (double) objects);
        if (all.length != count) {
            throw new IllegalStateException("kept alive until here");
        }
    }
}
