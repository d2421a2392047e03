package io.towa.barrier;

import io.towa.graph.Sections;
import io.towa.graph.Stores;
import java.util.Collection;
import java.util.Map;

/** Brackets of the JDK's methods that must be whole or not at all: see {@code io.towa.agent.WholeMethods}. */
public final class Whole {
    private Whole() {}

    public static void begin(Object o) {
        if (Switch.Raw.on() && Header.marked(o)) Sections.begin(o);
    }

    /** Before a method of the collection {@code o} that is going to store {@code v}: that is durable, if {@code o} is, or this throws. */
    public static void first(Object o, Object v) {
        if (v != null && Switch.Raw.on() && Header.marked(o)) Stores.pre(o, v);
    }

    /** As {@link #first}, for each element. */
    public static void firstAll(Object o, Collection<?> all) {
        if (all == null || !Switch.Raw.on() || !Header.marked(o)) return;
        Object[] elements = all.toArray();
        for (int i = 0; i < elements.length; i++) if (elements[i] != null) Stores.pre(o, elements[i]);
    }

    /** As {@link #first}, for each key and each value. */
    public static void firstAll(Object o, Map<?, ?> all) {
        if (all == null || !Switch.Raw.on() || !Header.marked(o)) return;
        firstAll(o, all.keySet());
        firstAll(o, all.values());
    }

    /** Ends what {@link #begin} began for {@code o}, if it did; a second call does nothing. */
    public static void end(Object o) {
        if (Switch.Raw.on() && Header.marked(o)) Sections.end(o);
    }
}
