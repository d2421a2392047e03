package orderbook;

import io.towa.DurableRoot;
import io.towa.Towa;
import java.math.BigDecimal;
import java.nio.file.Path;
import java.time.Instant;
import java.util.Random;
import java.util.UUID;

/**
 * An order book with several traders, which goes on after any crash.
 *
 * <p>{@code java -javaagent:towa.jar -cp examples.jar orderbook.OrderBook FILE [ORDERS [THREADS]]}: kill it, start it again.
 */
public final class OrderBook {
    @DurableRoot
    private static Book book;

    private static final String[] SYMBOLS = {"TOWA", "NVM", "DRAM", "DAX"};

    public static void main(String[] args) throws InterruptedException {
        if (args.length < 1) {
            System.err.println("usage: orderbook.OrderBook FILE [ORDERS [THREADS]]");
            System.exit(2);
        }
        int orders = args.length > 1 ? Integer.parseInt(args[1]) : 100_000;
        Thread[] traders = new Thread[args.length > 2 ? Integer.parseInt(args[2]) : 2];
        Towa.open(Path.of(args[0]));
        if (book == null) {
            book = new Book();
        }
        String wrong = book.check();
        if (wrong != null) {
            System.out.println("WRONG after recovery: " + wrong);
            System.exit(1);
        }
        System.out.println("begin " + book.summary());
        for (int t = 0; t < traders.length; t++) {
            traders[t] = new Thread(() -> trade(orders / traders.length), "trader-" + t);
            traders[t].start();
        }
        for (Thread t : traders) {
            t.join();
        }
        wrong = book.check();
        System.out.println(wrong == null ? "end " + book.summary() : "WRONG: " + wrong);
    }

    private static void trade(int orders) {
        Random random = new Random();
        UUID last = null;
        for (int n = 0; n < orders; n++) {
            if (last != null && random.nextInt(4) == 0) {
                book.cancel(last);
            }
            last = UUID.randomUUID();
            book.place(new Order(last, SYMBOLS[random.nextInt(SYMBOLS.length)], random.nextBoolean() ? Order.Side.BUY : Order.Side.SELL,
                BigDecimal.valueOf(9_900 + random.nextInt(200), 2), 1 + random.nextInt(100), Instant.now()));
        }
    }
}
