package io.towa.graph;

import java.util.HashMap;
import java.util.IdentityHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import jdk.internal.misc.Unsafe;

/**
 * Finds out whether keys have other hash codes in this run than in the one that saved them: if those come from the identity of an object that is not durable, as those of
 * protocol buffers come from their descriptor's. Some keys of each class are asked, and compared with the hash that their table has of them.
 *
 * <p>Always true: at most {@link #EACH} keys of a class are asked while they agree, so the cost is that of one look at each table.
 */
final class HashSamples {
    private static final Unsafe U = Unsafe.getUnsafe();
    private static final int EACH = 8;
    /** Bins of a table that are looked at: keys of a class that a larger table has behind them only are not asked. */
    private static final int BINS = 64;
    private static final long TABLE = Repairs.offset(HashMap.class, "table");
    private static final long CONCURRENT_TABLE = Repairs.offset(ConcurrentHashMap.class, "table");

    private final Map<Class<?>, Integer> asked = new IdentityHashMap<>();
    /** A class of which enough keys have been asked: most tables have keys of one. */
    private Class<?> enough;

    /** @param tables among them, hash maps of the JDK; those behind a HashSet, too */
    boolean differ(List<Object> tables) {
        for (int i = 0; i < tables.size(); i++) {
            Object o = tables.get(i);
            boolean concurrent = o instanceof ConcurrentHashMap;
            if ((concurrent || o instanceof HashMap) && differs((Object[]) U.getReference(o, concurrent ? CONCURRENT_TABLE : TABLE), concurrent)) {
                return true;
            }
        }
        return false;
    }

    private boolean differs(Object[] bins, boolean concurrent) {
        for (int i = 0; bins != null && i < bins.length && i < BINS; i++) {
            Object key = bins[i] == null ? null : MapRepairs.key(bins[i], concurrent);
            if (key != null && key.getClass() != enough) {
                int times = asked.merge(key.getClass(), 1, Integer::sum);
                if (times > EACH) {
                    enough = key.getClass();
                } else if (MapRepairs.hasOtherHash(bins[i], concurrent)) {
                    return true;
                }
            }
        }
        return false;
    }
}
