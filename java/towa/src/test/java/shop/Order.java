package shop;

import io.towa.DurableRoot;
import io.towa.NotDurable;
import java.io.Serializable;
import java.util.List;
import java.util.Map;

/** A class of a program, outside the library's packages, with a field of each fate. */
@SuppressWarnings("serial")
public class Order implements Serializable {
    /** Two constants, one of which has a state. */
    public static final Order NONE = new Order();
    public static final Price FREE = new Price(0);
    @DurableRoot
    static List<Order> all;
    long id;
    Thread.State state;
    transient Thread worker;
    @NotDurable
    Object cache;
    Runnable job;
    Map<String, Order> parts;

    /** Has no state. */
    public record Price(long cents) {}
}
