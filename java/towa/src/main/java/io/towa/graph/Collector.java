package io.towa.graph;

/** Frees replicas that no durable root reaches. */
public final class Collector {
    private Collector() {}

    static void start() {}

    static void stop() {}

    public static void collect() {}

    static long cycles() {
        return 0;
    }
}
