package io.towa;

/**
 * What the pool holds and has done since it was opened, but for counts of stores and promotions, which are since the JVM's start.
 *
 * @param guarantee as {@link Towa#guarantee}; null if no pool is open
 * @param objects durable objects, without those that are not loaded yet
 * @param usedBytes bytes of the pool in use, in segments of 4096; in a pool that was opened with values behind {@link OnDemand}s, all up to its end until
 *     the collector has come by
 * @param promoted objects that became durable
 * @param stores stores that reached a replica
 * @param skipped references left out because their object cannot be durable
 * @param collections cycles of the collector
 * @param collectorPauseMillis the longest time that the last of them held up stores
 * @param recoverySeconds how long the last opening took to bring the objects back
 * @param loads values of {@link OnDemand}s that were brought back since
 */
public record Metrics(String guarantee, long objects, long usedBytes, long promoted, long stores, long skipped, long collections, double collectorPauseMillis,
    double recoverySeconds, long loads) {}
