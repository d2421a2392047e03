package systemtest.backup;

import io.towa.Towa;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;

/**
 * A structure that says of which moment it is: entry number n decides what every part of it holds after n entries, so that parts of two moments do not agree.
 *
 * <pre>
 *   total   n                                    by thread   sums up to n
 *   latest  the last SLOTS entries, as strings   names       the last NAMES of them, a map
 *   bulk    n at one place, far from that of n - 1; zeros where no entry came by
 *   first, second: one thread adds to the first, then to the second, outside of sections
 * </pre>
 */
final class Ledger {
    static final int SLOTS = 3001;
    static final int NAMES = 1009;
    private static final int BLOCK = 8192;
    /** Entries lie so many places apart: more than a page, and prime to every power of two. */
    private static final long STRIDE = 1_000_003;

    /** In an object of its own, and far from the other: the first one is made before the bulk, the second one after it. */
    static final class Count {
        long value;
    }

    long total;
    final long[] byThread;
    final List<String> latest = new ArrayList<>();
    final Map<Integer, String> names = new HashMap<>();
    final Count first = new Count();
    final long[][] bulk;
    Count second;

    /** @param blocks a power of two, of 64 KiB each */
    Ledger(int threads, int blocks) {
        byThread = new long[threads];
        bulk = new long[blocks][];
        for (int i = 0; i < SLOTS; i++) {
            latest.add(null);
        }
    }

    /** Makes the bulk, when the ledger is durable. */
    void fill() {
        for (int i = 0; i < bulk.length; i++) {
            bulk[i] = new long[BLOCK];
        }
        second = new Count();
    }

    private long place(long n) {
        return n * STRIDE % ((long) bulk.length * BLOCK);
    }

    /** One more entry, all of it or nothing. @return its number */
    synchronized long enter(int thread) {
        Towa.atomically(() -> {
            long n = total + 1;
            String text = "entry " + n;
            total = n;
            latest.set((int) (n % SLOTS), text);
            byThread[thread]++;
            long place = place(n);
            bulk[(int) (place / BLOCK)][(int) (place % BLOCK)] = n;
            names.put((int) (n % NAMES), text);
        });
        return total;
    }

    /** One thread calls it. @return how often it was called */
    long count() {
        long n = first.value + 1;
        first.value = n;
        second.value = n;
        return n;
    }

    /** @return null if all is of one moment, at which there were at least so many entries and counts; else what is not */
    String wrong(long leastEntries, long leastCounts) {
        long sum = 0;
        for (long one : byThread) {
            sum += one;
        }
        if (sum != total || total < leastEntries) {
            return total + " entries, " + sum + " by thread, " + leastEntries + " were acknowledged";
        }
        if (second.value < leastCounts || first.value < second.value || first.value > second.value + 1) {
            return "counts " + first.value + ", " + second.value + "; " + leastCounts + " were acknowledged";
        }
        for (long n = Math.max(1, total - SLOTS + 1); n <= total; n++) {
            if (!("entry " + n).equals(latest.get((int) (n % SLOTS)))) {
                return "of " + total + " entries number " + n + " is " + latest.get((int) (n % SLOTS));
            }
        }
        for (long n = Math.max(1, total - NAMES + 1); n <= total; n++) {
            if (!("entry " + n).equals(names.get((int) (n % NAMES)))) {
                return "of " + total + " entries the name of number " + n + " is " + names.get((int) (n % NAMES));
            }
        }
        return wrongBulk();
    }

    private String wrongBulk() {
        long places = (long) bulk.length * BLOCK;
        long entries = Math.min(total, places);
        for (long n = total - entries + 1; n <= total; n++) {
            long found = bulk[(int) (place(n) / BLOCK)][(int) (place(n) % BLOCK)];
            if (found != n) {
                return "of " + total + " entries the place of number " + n + " holds " + found;
            }
        }
        long others = 0;
        for (long[] block : bulk) {
            for (long v : block) {
                others += v != 0 ? 1 : 0;
            }
        }
        return others == entries ? null : others + " places of the bulk are taken by " + entries + " entries";
    }
}
