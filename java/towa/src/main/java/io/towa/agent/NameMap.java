package io.towa.agent;

/**
 * A map of names, without a collection: those of java.util run barriers, and a barrier may need the very class that is being woven.
 *
 * <p>Not synchronized. Names are only added, or given another value.
 */
final class NameMap<V> {
    /** Open addressing, at most half full; the value of {@code names[i]} is {@code values[i]}. */
    private String[] names = new String[64];
    private Object[] values = new Object[64];
    private int size;

    /** The value of that name, or null. */
    @SuppressWarnings("unchecked")
    V get(String name) {
        return (V) values[slot(names, name)];
    }

    /** Gives that name a value, which is not null. */
    void put(String name, V value) {
        if (2 * size >= names.length) grow();
        int slot = slot(names, name);
        if (names[slot] == null) {
            names[slot] = name;
            size++;
        }
        values[slot] = value;
    }

    private static int slot(String[] in, String name) {
        int mask = in.length - 1;
        int h = name.hashCode();
        for (int slot = (h ^ h >>> 15) & mask; ; slot = slot + 1 & mask) {
            if (in[slot] == null || in[slot].equals(name)) return slot;
        }
    }

    private void grow() {
        String[] widerNames = new String[2 * names.length];
        Object[] widerValues = new Object[2 * names.length];
        for (int i = 0; i < names.length; i++) {
            if (names[i] == null) continue;
            int slot = slot(widerNames, names[i]);
            widerNames[slot] = names[i];
            widerValues[slot] = values[i];
        }
        names = widerNames;
        values = widerValues;
    }
}
