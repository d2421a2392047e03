package io.towa;

import io.towa.graph.Loads;
import io.towa.graph.Unloaded;

/**
 * A durable reference to what is brought back only when it is asked for. {@link Towa#open} brings back all that the roots reach, but stops here: what an
 * {@code OnDemand} refers to, with all that is reached through it alone, stays in the pool until the first {@link #get}.
 *
 * <pre>{@code
 *   @DurableRoot static Map<Integer, OnDemand<List<Order>>> years;      // opening takes as long as this map does
 *
 *   years.get(2019).get().size();                                       // the orders of 2019 are brought back here; from then on they are ordinary objects
 *   years.put(2026, new OnDemand<>(new ArrayList<>()));
 * }</pre>
 *
 * <p>{@code get} is atomic for the program: the value is there whole, or an exception says why not, nothing has changed, and it can be asked for again. Objects
 * that are reached in another way, too, are the same ones. What was loaded stays in the heap as long as the program, or the durable graph, refers to
 * it. Storing needs no loading: {@link #set} replaces a value that never was.
 *
 * <p>Volatile: what one thread sets or loads another sees. In a program without the agent, or without a pool, it is a plain holder. After {@link Towa#close} a
 * value that was not loaded is not to be had ({@link TowaException}); open the pool again. If a class in the pool has changed, {@link Towa#open} brings back all, to
 * write it afresh.
 */
public final class OnDemand<T> {
    /** The value, or what stands for it until it is loaded. */
    private volatile Object value;

    /** Holds null. */
    public OnDemand() {}

    public OnDemand(T value) {
        this.value = value;
    }

    /**
     * The value, brought back from the pool if it was not yet. Loading waits for a load of another thread, not for anybody's stores.
     *
     * @throws PoolException it cannot be brought back: the pool is damaged there, a class does not fit, or the pool is full and the value must be healed first
     * @throws TowaException the pool was closed before it was loaded
     */
    @SuppressWarnings("unchecked")
    public T get() {
        Object v = value;
        return (T) (v instanceof Unloaded unloaded ? Loads.load(this, unloaded) : v);
    }

    /** As any store to a volatile field: durable before a thread can read it, if this is durable. The value before need not be loaded. */
    public void set(T v) {
        value = v;
    }

    /** Whether {@link #get} has nothing to bring back: for this holder at least, while another may have loaded the value already. */
    public boolean isLoaded() {
        return !(value instanceof Unloaded);
    }

    /** Loads nothing. */
    @Override
    public String toString() {
        Object v = value;
        return v instanceof Unloaded ? "OnDemand (not loaded)" : "OnDemand " + v;
    }
}
