package towabench.programs.big;

import io.towa.DurableRoot;
import io.towa.Towa;
import io.towa.TowaOptions;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.eclipse.store.storage.embedded.types.EmbeddedStorage;
import org.eclipse.store.storage.embedded.types.EmbeddedStorageManager;

/**
 * The same orders, with EclipseStore and with Towa: a change of one, a new one in a large map, and a restart of many objects.
 *
 * <pre>Beside eclipsestore|towa work|restart WHERE MAP OBJECTS       @figure operation value unit     @end</pre>
 */
public final class Beside {
    static final class Order {
        final String customer;
        int quantity;
        long cents;

        Order(String customer, int quantity, long cents) {
            this.customer = customer;
            this.quantity = quantity;
            this.cents = cents;
        }
    }

    static final class Shop {
        final Map<Integer, Order> orders = new HashMap<>();
        /** For the restart: three objects each, an order, its customer's name and that name's bytes. */
        final List<Order> archive = new ArrayList<>();
    }

    /** Makes a change last. */
    private interface Store {
        void changed(Object o);
    }

    @DurableRoot static Shop shop;

    private Beside() {}

    public static void main(String[] args) {
        int map = Integer.parseInt(args[3]);
        int objects = Integer.parseInt(args[4]);
        boolean work = args[1].equals("work");
        long began = System.nanoTime();
        if (args[0].equals("towa")) {
            Towa.open(Path.of(args[2]), TowaOptions.DEFAULT.withCapacity(8L << 30));
            if (work) {
                Shop s = new Shop();
                fill(s, map, objects);
                shop = s;
                work(s, map, o -> {});
            } else {
                restarted(shop, began, map, objects);
            }
            Towa.close();
        } else {
            Shop s = new Shop();
            if (work) {
                fill(s, map, objects);
            }
            EmbeddedStorageManager storage = work ? EmbeddedStorage.start(s, Path.of(args[2])) : EmbeddedStorage.start(Path.of(args[2]));
            if (work) {
                storage.storeRoot();
                work(s, map, storage::store);
            } else {
                restarted((Shop) storage.root(), began, map, objects);
            }
            storage.shutdown();
        }
        System.out.println("@end");
        System.exit(0);
    }

    private static void fill(Shop s, int map, int objects) {
        for (int i = 0; i < map; i++) {
            s.orders.put(i, new Order("customer " + i, 1, i));
        }
        for (int i = 0; i < objects / 3; i++) {
            s.archive.add(new Order("archived " + i, 1, i));
        }
    }

    private static void work(Shop s, int map, Store store) {
        List<Double> change = new ArrayList<>();
        List<Double> put = new ArrayList<>();
        for (int i = 0; i < 3000; i++) {
            Order o = s.orders.get(i * 7919 % map);
            long began = System.nanoTime();
            o.quantity++;
            store.changed(o);
            change.add((System.nanoTime() - began) / 1e3);
        }
        for (int i = 0; i < 40; i++) {
            Order fresh = new Order("new " + i, 1, i);
            long began = System.nanoTime();
            s.orders.put(map + i, fresh);
            store.changed(s.orders);
            put.add((System.nanoTime() - began) / 1e3);
        }
        // The first half warms up.
        figure("change_one_order", towabench.Stats.median(change.subList(1500, 3000)), "us");
        figure("put_into_map_of_" + map, towabench.Stats.median(put.subList(20, 40)), "us");
    }

    private static void restarted(Shop s, long began, int map, int objects) {
        int sum = 0;
        for (Order o : s.archive) {
            sum += o.quantity + o.customer.length() / 100;
        }
        figure("restart_of_" + objects + "_and_map", (System.nanoTime() - began) / 1e6, "ms");
        if (sum != objects / 3 || s.orders.size() != map + 40) {
            throw new IllegalStateException("wrong after the restart: " + sum + " archived, " + s.orders.size() + " orders");
        }
    }

    private static void figure(String name, double value, String unit) {
        System.out.println("@figure " + name + " " + value + " " + unit);
    }
}
