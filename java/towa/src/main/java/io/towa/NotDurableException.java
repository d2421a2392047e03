package io.towa;

/**
 * An object was about to become durable that cannot be: a thread, a stream, a lambda. The store that would have made it durable
 * did not happen; only if another thread made the target durable at that very moment may DRAM have the new value, and the pool the old.
 */
public class NotDurableException extends TowaException {
    private static final long serialVersionUID = 1;
    /** As {@link #path()}. */
    private final String path;

    /**
     * An object that cannot be durable.
     *
     * @param path how it was reached
     * @param why why it cannot
     */
    public NotDurableException(String path, String why) {
        super(path + ": " + why);
        this.path = path;
    }

    /**
     * How the object was reached.
     *
     * @return such as {@code Orders.open -> HashMap.table[17] -> HashMap$Node.value -> Order.session}
     */
    public String path() {
        return path;
    }
}
