package towabench;

import io.towa.DurableRoot;
import io.towa.Metrics;
import io.towa.Towa;
import io.towa.TowaOptions;
import io.towa.agent.Agent;
import java.nio.file.Path;
import java.util.HashMap;
import java.util.List;
import java.util.Map;

/** What a {@link Runner} has to do with Towa; not loaded where it runs without. */
final class Pools {
    /** Something small and durable beside the program. */
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

    @DurableRoot static Map<String, Order> orders;

    private static final int ORDERS = 1000;
    private static Thread worker;
    private static long began;
    private static long marked;
    private static Metrics before;

    private Pools() {}

    static void open(Mode mode, Path pool) {
        TowaOptions how = TowaOptions.DEFAULT.withCapacity(Long.getLong("towabench.capacity", 6L << 30));
        began = System.nanoTime();
        Towa.open(pool, mode == Mode.all ? how.skippingNotDurable() : how);
        System.out.println("@opened " + (System.nanoTime() - began));
        if (mode == Mode.pool) {
            orders = new HashMap<>();
            for (int i = 0; i < ORDERS; i++) {
                orders.put("order-" + i, new Order("customer " + i % 100, i % 7, i * 100L));
            }
            worker = new Thread(Pools::work, "orders");
            worker.setDaemon(true);
            worker.start();
        }
    }

    /** Five times a second one order changes and another is replaced. */
    private static void work() {
        for (int i = 0;; i++) {
            Order o = orders.get("order-" + i % ORDERS);
            o.quantity++;
            o.cents += 100;
            orders.put("order-" + (i + 500) % ORDERS, new Order("customer " + i, 1, 1));
            try {
                Thread.sleep(200);
            } catch (InterruptedException e) {
                return;
            }
        }
    }

    static void mark() {
        before = Towa.metrics();
        marked = System.nanoTime();
    }

    static void measured() {
        double seconds = (System.nanoTime() - marked) / 1e9;
        Metrics m = Towa.metrics();
        System.out.println("@metrics " + m.objects() + " " + m.usedBytes() + " " + (m.promoted() - before.promoted()) / seconds + " "
            + (m.stores() - before.stores()) / seconds + " " + m.skipped() + " " + m.collections());
    }

    static void finish() throws InterruptedException {
        // Who stores while objects are compared is held back between the store and its replica's.
        if (worker != null) {
            worker.interrupt();
            worker.join();
        }
        List<String> differences = Towa.verify();
        // Threads of the JDK or of the program may be ending still.
        for (int i = 0; i < 5 && !differences.isEmpty(); i++) {
            Thread.sleep(200);
            differences = Towa.verify();
        }
        System.out.println("@verify " + differences.size());
        differences.stream().limit(8).forEach(d -> System.out.println("@problem differs: " + d));
        Agent.Failure[] failures = Agent.failures();
        System.out.println("@unwoven " + failures.length);
        for (int i = 0; i < Math.min(8, failures.length); i++) {
            System.out.println("@problem not woven: " + failures[i]);
        }
    }
}
