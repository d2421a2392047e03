package orderbook;

import java.math.BigDecimal;
import java.time.Instant;
import java.util.UUID;

/** An order. Its quantity changes as it is filled; all else is as it was placed. */
final class Order {
    enum Side {
        BUY,
        SELL
    }

    final UUID id;
    final String symbol;
    final Side side;
    final BigDecimal price;
    final Instant placed;
    long left;

    Order(UUID id, String symbol, Side side, BigDecimal price, long quantity, Instant placed) {
        this.id = id;
        this.symbol = symbol;
        this.side = side;
        this.price = price;
        this.left = quantity;
        this.placed = placed;
    }
}
