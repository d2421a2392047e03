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
 * that are reached in another way, too, are the same ones. Storing needs no loading: {@link #set} replaces a value that never was.
 *
 * <p>What was loaded stays in the heap as long as the program, or the durable graph, refers to it: it is not unloaded again before the pool is closed. What is not takes some 100
 * bytes. If a class in the pool has changed (by an update of the JDK, too), {@link Towa#open} brings back all, once, to write it afresh; the heap must have room for that.
 *
 * <p>Volatile: what one thread sets or loads another sees. Equal to itself only. In a program without the agent, or without a pool, it is a plain holder. After
 * {@link Towa#close} a value that was not loaded is not to be had ({@link TowaException}); open the pool again. {@code hashCode} and {@code equals} of keys in durable
 * collections must not ask an OnDemand for its value, nor wait for who does: they may be called while something is loaded.
 *
 * @param <T> of the value
 */
public final class OnDemand<T> {
    /** The value, or what stands for it until it is loaded. */
    private volatile Object value;

    /** Holds null. */
    public OnDemand() {}

    /**
     * Holds {@code value}.
     *
     * @param value any object, or null; durable as soon as this is
     */
    public OnDemand(T value) {
        this.value = value;
    }

    /**
     * The value, brought back from the pool if it was not yet. Loading waits for a load of another thread; and, where a crash left a collection half done, which is
     * healed now, for {@link Towa#atomically} of another thread, ten seconds at most. Ordinary stores and loads do not wait for each other.
     *
     * @return the value; always the same object, until another is set
     * @throws PoolException it cannot be brought back: the pool is damaged there, a class does not fit, or the pool is full and the value must be healed first
     * @throws TowaException the pool was closed before it was loaded; or another thread's section did not end
     */
    @SuppressWarnings("unchecked")
    public T get() {
        Object v = value;
        return (T) (v instanceof Unloaded unloaded ? Loads.load(this, unloaded) : v);
    }

    /**
     * Replaces the value, which need not be loaded. As any store to a volatile field: durable before a thread can read it, if this is durable.
     *
     * @param v any object, or null
     * @throws NotDurableException this is durable, and {@code v} cannot be; the value is as it was
     */
    public void set(T v) {
        value = v;
    }

    /**
     * Whether this holder has the value. If not, {@link #get} may yet find it in the heap, brought back in another way.
     *
     * @return false until the first {@link #get} or {@link #set} after the pool was opened
     */
    public boolean isLoaded() {
        return !(value instanceof Unloaded);
    }

    /** Says of which class the value is, if it is loaded; loads nothing. */
    @Override
    public String toString() {
        Object v = value;
        return v instanceof Unloaded ? "OnDemand (not loaded)" : v == null ? "OnDemand (null)" : "OnDemand (" + v.getClass().getName() + ")";
    }
}
