package io.towa.agent;

/** A set of 64-bit keys, never zero, that only grows. Always true: may be asked and added to by any thread. */
final class LongSet {
    private long[] table = new long[4096];
    private int count;

    /** A key for a class: its name (dots and slashes are one) and its defining loader. */
    static long key(String name, ClassLoader loader) {
        long h = loader == null ? 1 : System.identityHashCode(loader) * 0x9e3779b97f4a7c15L;
        for (int i = 0; i < name.length(); i++) {
            char c = name.charAt(i);
            h = (h ^ (c == '.' ? '/' : c)) * 0x100000001b3L;
            h ^= h >>> 29;
        }
        return h == 0 ? 1 : h;
    }

    synchronized boolean add(long key) {
        if (count * 2 >= table.length) {
            long[] old = table;
            table = new long[old.length * 2];
            for (int i = 0; i < old.length; i++) if (old[i] != 0) table[slot(old[i])] = old[i];
        }
        int s = slot(key);
        if (table[s] == key) return false;
        table[s] = key;
        count++;
        return true;
    }

    synchronized boolean has(long key) {
        return table[slot(key)] == key;
    }

    private int slot(long key) {
        int mask = table.length - 1;
        int s = (int) (key ^ key >>> 32) & mask;
        while (table[s] != 0 && table[s] != key) s = s + 1 & mask;
        return s;
    }
}
