package io.towa.graph;

import io.towa.medium.Nvm;
import io.towa.policy.CodeStamps;
import io.towa.policy.HashCodes;
import io.towa.pool.Layout;

/**
 * Compares the hash codes of the pool's classes with those of today ({@link HashCodes}). That reads class files; so it is left out while the files are the ones
 * that they were when it was done last: the pool holds the sum of their stamps ({@link Layout#CODE}).
 */
final class KnownCode {
    /** Of the stamps of the classes that have records; 0: not known. */
    private static long sum;
    private static CodeStamps stamps;

    private KnownCode() {}

    /** In a new pool there is no class. */
    static void none() {
        stamps = new CodeStamps();
        sum = 1;
    }

    /** Tells each mapping whether its class' hash code is another than when its record was made. */
    static void compare(ClassMapping[] mappings) {
        none();
        long[] all = new long[mappings.length];
        for (int i = 1; i < mappings.length; i++) {
            if (mappings[i] != null && mappings[i].hasHash()) {
                all[i] = stamps.of(mappings[i].type);
                sum += part(mappings[i].info, mappings[i].record.hash(), all[i]);
            }
        }
        boolean unchanged = Nvm.getLong(Layout.CODE) == sum;
        boolean settled = true;
        for (int i = 1; i < mappings.length; i++) {
            if (mappings[i] != null && mappings[i].hasHash()) {
                settled &= mappings[i].compareHash(unchanged && all[i] != 0);
            }
        }
        if (!settled) {
            forget();
        }
    }

    /** A class got a record. The caller holds the lock of class records, or is alone. */
    static void added(ClassInfo c) {
        String hash = c.hash();
        if (sum != 0 && !hash.isEmpty()) {
            sum += part(c, hash, stamps.of(c.type));
        }
    }

    private static long part(ClassInfo c, String hash, long stamp) {
        return CodeStamps.mix(stamp ^ c.recordName().hashCode() ^ (long) hash.hashCode() << 32);
    }

    /** Records have gone, or the code of some class is not known, or another: the next opening compares them all. */
    static void forget() {
        sum = 0;
    }

    static void save() {
        if (Nvm.getLong(Layout.CODE) != sum) {
            Nvm.putLongDurably(Layout.CODE, sum);
        }
    }
}
