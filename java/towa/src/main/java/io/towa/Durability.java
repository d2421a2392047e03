package io.towa;

/** What a pool survives. On DAX memory {@link #PROCESS} is power-safe too: see {@link Towa#guarantee}. */
public enum Durability {
    /**
     * Strict and process-safe: a store to a durable object is in the pool when the statement ends, and survives the process' death by any cause. On DAX
     * memory it also survives the loss of power; on other files what the kernel has not written back is lost with the power.
     */
    PROCESS,
    /**
     * Buffered and power-safe: the pool's file holds the state of a moment at most one interval ago, whole, after any crash. {@link Towa#sync} waits until all
     * before it is in the file.
     */
    POWER
}
