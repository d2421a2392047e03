package io.towa;

import java.time.Duration;
import java.util.Map;

/**
 * How a pool is opened. {@link #DEFAULT}, changed by the {@code with} methods.
 *
 * @param capacity the most bytes the file may get; 0: as it was made, or for a new one 4 times the JVM's largest heap (at least 1 GiB). A
 *     pool can be opened with a greater one later
 * @param durability what the pool survives
 * @param interval with {@link Durability#POWER}: between two commits
 * @param skipsNotDurable what cannot be durable is left out (null in the pool) and counted, instead of {@link NotDurableException}
 * @param renamed for classes that were renamed: the old binary name to the new one. For a durable root that was renamed or has moved, {@code CLASS#FIELD} to
 *     {@code CLASS#FIELD}; for one that the program does without, {@code CLASS#FIELD} to an empty string: the pool keeps its value
 * @param loader finds the classes of the pool; null: the thread's context class loader
 */
public record TowaOptions(long capacity, Durability durability, Duration interval, boolean skipsNotDurable, Map<String, String> renamed,
    ClassLoader loader) {
    /** Strict and process-safe (power-safe on DAX), capacity by the heap, exceptions for what cannot be durable. */
    public static final TowaOptions DEFAULT = new TowaOptions(0, Durability.PROCESS, Duration.ofMillis(100), false, Map.of(), null);

    /** Refuses what makes no sense. */
    public TowaOptions {
        if (capacity < 0 || capacity > 0 && capacity < 1 << 20) {
            throw new IllegalArgumentException("capacity " + capacity + ": at least 1 MiB, or 0 for the default");
        }
        if (interval.isNegative() || interval.isZero()) {
            throw new IllegalArgumentException("interval " + interval + ": more than nothing");
        }
        renamed = Map.copyOf(renamed);
        for (Map.Entry<String, String> e : renamed.entrySet()) {
            requireNames(e.getKey(), e.getValue());
            requireEnd(renamed, e.getKey());
        }
    }

    /** Roots that get each other's names would get them back at the next start with the same options. */
    private static void requireEnd(Map<String, String> renamed, String root) {
        String next = root;
        for (int i = 0; i < renamed.size() && next != null && next.indexOf('#') >= 0; i++) {
            next = renamed.get(next);
            if (root.equals(next)) {
                throw new IllegalArgumentException("renamed: durable root " + root + " becomes itself in the end, and each start would rename it once more;"
                    + " rename by way of a name that the program does not have, in two starts");
            }
        }
    }

    private static void requireNames(String old, String now) {
        boolean isRoot = old.indexOf('#') >= 0;
        boolean fits = isRoot ? now.isEmpty() || now.indexOf('#') > 0 && now.indexOf('#') < now.length() - 1 : !now.isEmpty() && now.indexOf('#') < 0;
        if (!fits) {
            throw new IllegalArgumentException("renamed \"" + old + "\" to \"" + now + "\": "
                + (isRoot ? "a durable root becomes CLASS#FIELD, or \"\" to go on without it" : "a class becomes a class"));
        }
    }

    /**
     * These, with another capacity.
     *
     * @param bytes at least 1 MiB; 0: by the heap
     * @return a changed copy
     */
    public TowaOptions withCapacity(long bytes) {
        return new TowaOptions(bytes, durability, interval, skipsNotDurable, renamed, loader);
    }

    /**
     * These, with another durability.
     *
     * @param d what the pool is to survive
     * @return a changed copy
     */
    public TowaOptions withDurability(Durability d) {
        return new TowaOptions(capacity, d, interval, skipsNotDurable, renamed, loader);
    }

    /**
     * These, with another interval between commits.
     *
     * @param i more than nothing
     * @return a changed copy
     */
    public TowaOptions withInterval(Duration i) {
        return new TowaOptions(capacity, durability, i, skipsNotDurable, renamed, loader);
    }

    /**
     * These, with what cannot be durable left out and counted.
     *
     * @return a changed copy
     */
    public TowaOptions skippingNotDurable() {
        return new TowaOptions(capacity, durability, interval, true, renamed, loader);
    }

    /**
     * These, with classes and durable roots that were renamed.
     *
     * @param oldToNew as in {@link #renamed}
     * @return a changed copy
     */
    public TowaOptions withRenamed(Map<String, String> oldToNew) {
        return new TowaOptions(capacity, durability, interval, skipsNotDurable, oldToNew, loader);
    }

    /**
     * These, with a loader for the pool's classes.
     *
     * @param l null: the thread's context class loader
     * @return a changed copy
     */
    public TowaOptions withLoader(ClassLoader l) {
        return new TowaOptions(capacity, durability, interval, skipsNotDurable, renamed, l);
    }
}
