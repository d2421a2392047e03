package io.towa.graph;

import io.towa.PoolException;
import io.towa.PoolException.Reason;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.EnumMap;
import java.util.EnumSet;
import java.util.HashMap;
import java.util.IdentityHashMap;
import java.util.List;
import java.util.Map;
import jdk.internal.misc.Unsafe;

/**
 * Puts the entries of {@link EnumMap} and {@link EnumSet} where the ordinals of this run's constants are.
 *
 * <p>Both lie by ordinal, and both hold all constants of their enum in the order in which it had them: the saved order is in the pool. Where it is another than
 * today's the entries move, and the table grows with the enum. A constant that is gone is no fault if there is no entry of it.
 */
final class EnumRepairs {
    private static final Unsafe U = Unsafe.getUnsafe();
    private static final Class<?> REGULAR = Repairs.type("java.util.RegularEnumSet");
    private static final Class<?> JUMBO = Repairs.type("java.util.JumboEnumSet");
    private static final long KEY_TYPE = Repairs.offset(EnumMap.class, "keyType");
    private static final long KEYS = Repairs.offset(EnumMap.class, "keyUniverse");
    private static final long VALUES = Repairs.offset(EnumMap.class, "vals");
    private static final long ELEMENT_TYPE = Repairs.offset(EnumSet.class, "elementType");
    private static final long UNIVERSE = Repairs.offset(EnumSet.class, "universe");
    private static final long BITS = Repairs.offset(REGULAR, "elements");
    private static final long WORDS = Repairs.offset(JUMBO, "elements");

    private final Repairs repairs;
    /** One array of constants for each enum, as the JDK has it. */
    private final Map<Class<?>, Object[]> today = new HashMap<>();

    /** By the array that they are missing in. */
    private final Map<Object[], List<RecoveryWorker.Gone>> gone = new IdentityHashMap<>();
    /** Arrays that only tell an order. */
    private final Map<Object[], Boolean> orders = new IdentityHashMap<>();

    EnumRepairs(Repairs repairs, List<RecoveryWorker.Gone> gone) {
        this.repairs = repairs;
        for (int i = 0; i < gone.size(); i++) {
            this.gone.computeIfAbsent(gone.get(i).array(), a -> new ArrayList<>()).add(gone.get(i));
        }
    }

    /** After all have been looked at: in any other array the constants are data. */
    void requireRest() {
        for (Map.Entry<Object[], List<RecoveryWorker.Gone>> e : gone.entrySet()) {
            if (!orders.containsKey(e.getKey())) {
                throw e.getValue().get(0).fault();
            }
        }
    }

    /** Where the constant is now that was number {@code i}, and has an entry. */
    private int now(Object o, Object[] saved, int i) {
        if (saved[i] == null) {
            String name = "a constant";
            List<RecoveryWorker.Gone> of = gone.getOrDefault(saved, List.of());
            for (int k = 0; k < of.size(); k++) {
                name = of.get(k).index() == i ? of.get(k).name() : name;
            }
            throw new PoolException(Reason.CHANGED_CLASS, "an " + (o instanceof EnumMap ? "EnumMap has an entry of " : "EnumSet has ") + name
                + ", which this program does not have; bring it back, or let a version that has it remove the entry");
        }
        return ((Enum<?>) saved[i]).ordinal();
    }

    static boolean isSuspect(Class<?> c) {
        return EnumMap.class.isAssignableFrom(c) || c == REGULAR || c == JUMBO;
    }

    void look(Object o) {
        boolean map = o instanceof EnumMap;
        Class<?> type = (Class<?>) U.getReference(o, map ? KEY_TYPE : ELEMENT_TYPE);
        Object[] saved = (Object[]) U.getReference(o, map ? KEYS : UNIVERSE);
        Object[] now = today.get(type);
        if (now == null) {
            now = type.getEnumConstants();
            today.put(type, now);
        }
        if (now == null || Arrays.equals(saved, now)) {
            return;
        }
        orders.put(saved, true);
        if (map) {
            map(o, saved, now);
        } else if (o.getClass() == REGULAR) {
            regular(o, type, saved, now);
        } else {
            jumbo(o, saved, now);
        }
        repairs.put(o, map ? KEYS : UNIVERSE, now);
    }

    private void map(Object o, Object[] saved, Object[] now) {
        Object[] values = (Object[]) U.getReference(o, VALUES);
        Object[] anew = new Object[now.length];
        for (int i = 0; i < values.length; i++) {
            if (values[i] != null) {
                anew[now(o, saved, i)] = values[i];
            }
        }
        repairs.put(o, VALUES, anew);
    }

    private void regular(Object o, Class<?> type, Object[] saved, Object[] now) {
        if (now.length > 64) {
            throw new PoolException(Reason.CHANGED_CLASS, "enum " + type.getName() + " has more than 64 constants now, and the pool has an EnumSet of it that was made for "
                + saved.length + ", which cannot become larger; keep such a set as a HashSet, or the enum to 64 constants");
        }
        long bits = 0;
        for (long left = U.getLong(o, BITS); left != 0; left &= left - 1) {
            bits |= 1L << now(o, saved, Long.numberOfTrailingZeros(left));
        }
        repairs.putLong(o, BITS, bits);
    }

    private void jumbo(Object o, Object[] saved, Object[] now) {
        long[] words = (long[]) U.getReference(o, WORDS);
        long[] anew = new long[Math.max(1, now.length + 63 >>> 6)];
        for (int i = 0; i < saved.length; i++) {
            if ((words[i >>> 6] & 1L << i) != 0) {
                int to = now(o, saved, i);
                anew[to >>> 6] |= 1L << to;
            }
        }
        repairs.put(o, WORDS, anew);
    }
}
