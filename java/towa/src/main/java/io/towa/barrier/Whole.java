package io.towa.barrier;

import io.towa.graph.Sections;

/** Brackets of the JDK's methods that must be whole or not at all: see {@code io.towa.agent.WholeMethods}. */
public final class Whole {
    private Whole() {}

    public static void begin(Object o) {
        if (Switch.Raw.on() && Header.marked(o)) Sections.begin(o);
    }

    /** Ends what {@link #begin} began for {@code o}, if it did; a second call does nothing. */
    public static void end(Object o) {
        if (Switch.Raw.on() && Header.marked(o)) Sections.end(o);
    }
}
