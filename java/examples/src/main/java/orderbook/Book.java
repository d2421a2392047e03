package orderbook;

import io.towa.Towa;
import java.math.BigDecimal;
import java.util.ArrayDeque;
import java.util.Comparator;
import java.util.HashMap;
import java.util.Map;
import java.util.TreeMap;
import java.util.UUID;

/**
 * A small order book: for each symbol the open orders by price, matched as they come.
 *
 * <p>Ordinary collections under an ordinary lock. A match changes several objects that must agree, so it is a section: after a
 * crash all of it is there, or nothing.
 */
final class Book {
    private final Map<String, TreeMap<BigDecimal, ArrayDeque<Order>>> buys = new HashMap<>();
    private final Map<String, TreeMap<BigDecimal, ArrayDeque<Order>>> sells = new HashMap<>();
    private final Map<UUID, Order> open = new HashMap<>();
    /** What was ever placed, and what was traded: so that {@code placed == open + 2 * traded + cancelled} can be checked. */
    private long placed;
    private long traded;
    private long cancelled;

    synchronized void place(Order order) {
        Towa.atomically(() -> {
            placed += order.left;
            match(order);
            if (order.left > 0) {
                side(order.side, order.symbol).computeIfAbsent(order.price, p -> new ArrayDeque<>()).add(order);
                open.put(order.id, order);
            }
        });
    }

    synchronized boolean cancel(UUID id) {
        Order order = open.get(id);
        if (order == null) {
            return false;
        }
        Towa.atomically(() -> {
            open.remove(id);
            cancelled += order.left;
            TreeMap<BigDecimal, ArrayDeque<Order>> levels = side(order.side, order.symbol);
            ArrayDeque<Order> level = levels.get(order.price);
            level.remove(order);
            if (level.isEmpty()) {
                levels.remove(order.price);
            }
        });
        return true;
    }

    private TreeMap<BigDecimal, ArrayDeque<Order>> side(Order.Side side, String symbol) {
        boolean buy = side == Order.Side.BUY;
        // A named comparator: a lambda could not be found again after a restart.
        return (buy ? buys : sells).computeIfAbsent(symbol, s -> new TreeMap<>(buy ? Comparator.<BigDecimal>reverseOrder() : Comparator.<BigDecimal>naturalOrder()));
    }

    private void match(Order order) {
        Order.Side other = order.side == Order.Side.BUY ? Order.Side.SELL : Order.Side.BUY;
        TreeMap<BigDecimal, ArrayDeque<Order>> levels = side(other, order.symbol);
        while (order.left > 0 && !levels.isEmpty() && crosses(order, levels.firstKey())) {
            ArrayDeque<Order> level = levels.firstEntry().getValue();
            Order best = level.peek();
            long n = Math.min(order.left, best.left);
            order.left -= n;
            best.left -= n;
            traded += n;
            if (best.left == 0) {
                level.poll();
                open.remove(best.id);
                if (level.isEmpty()) {
                    levels.pollFirstEntry();
                }
            }
        }
    }

    private static boolean crosses(Order order, BigDecimal best) {
        int c = order.price.compareTo(best);
        return order.side == Order.Side.BUY ? c >= 0 : c <= 0;
    }

    /** What is wrong with the book; null if all agrees. */
    synchronized String check() {
        long left = 0;
        int orders = 0;
        for (Map<String, TreeMap<BigDecimal, ArrayDeque<Order>>> side : java.util.List.of(buys, sells)) {
            for (TreeMap<BigDecimal, ArrayDeque<Order>> levels : side.values()) {
                for (ArrayDeque<Order> level : levels.values()) {
                    for (Order o : level) {
                        left += o.left;
                        orders++;
                        if (open.get(o.id) != o) {
                            return "order " + o.id + " is in the book, but not open";
                        }
                    }
                }
            }
        }
        if (orders != open.size()) {
            return orders + " orders in the book, " + open.size() + " open";
        }
        return placed == left + 2 * traded + cancelled ? null
            : "placed " + placed + ", left " + left + ", traded " + traded + ", cancelled " + cancelled;
    }

    synchronized String summary() {
        return open.size() + " open orders, " + placed + " placed, " + traded + " traded, " + cancelled + " cancelled";
    }
}
