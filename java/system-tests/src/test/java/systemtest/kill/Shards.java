package systemtest.kill;

import io.towa.DurableRoot;
import io.towa.OnDemand;
import io.towa.Towa;
import java.nio.file.Path;
import java.util.List;
import java.util.Random;
import java.util.concurrent.ConcurrentHashMap;

/**
 * Maps behind OnDemands, of which each run loads some. Entries are put in order and counted, outside; holders change places, loaded or not; at its start all that was counted
 * must be in the maps that are loaded then, and some of them are loaded only later, by several threads.
 *
 * <p>Nothing but shards is of the classes that shards are made of: their barriers are turned on by the first load.
 */
public final class Shards {
    private static final int SHARDS = 24;
    private static final int MOST = 600;

    /** What lies behind a holder. */
    static final class Shard {
        final int id;
        final ConcurrentHashMap<Integer, String> entries = new ConcurrentHashMap<>();
        int last = -1;

        Shard(int id) {
            this.id = id;
        }
    }

    /** By place: the shard's number, how many of its entries are counted, the shard. */
    static final class Store {
        final int[] ids = new int[SHARDS];
        final int[] counts = new int[SHARDS];
        final OnDemand<?>[] shards = new OnDemand<?>[SHARDS];
        int next;

        void set(int i, OnDemand<?> shard, int id, int count) {
            shards[i] = shard;
            ids[i] = id;
            counts[i] = count;
        }
    }

    @DurableRoot
    private static Store store;

    private Shards() {}

    public static void main(String[] args) throws Exception {
        Towa.open(Path.of(args[0]));
        if (store == null) {
            Store s = new Store();
            for (int i = 0; i < SHARDS; i++) {
                s.shards[i] = new OnDemand<>(new Shard(i));
                s.ids[i] = i;
            }
            s.next = SHARDS;
            store = s;
        }
        Random random = new Random();
        int unloaded = 0;
        String wrong = null;
        for (int i = 0; i < SHARDS; i++) {
            unloaded += store.shards[i].isLoaded() ? 0 : 1;
        }
        for (int i = 0; i < SHARDS && wrong == null; i++) {
            if (random.nextInt(3) == 0) {
                wrong = check(store, i);
                shard(store, i).last = shard(store, i).last;
            }
        }
        List<String> differs = wrong == null ? Towa.verify() : List.of(wrong);
        System.out.println(differs.isEmpty() ? "begin, not loaded " + unloaded : "WRONG " + differs);
        Thread[] threads = new Thread[2];
        for (int t = 0; t < threads.length; t++) {
            int me = t;
            threads[t] = Thread.ofPlatform().start(() -> work(store, me, new Random()));
        }
        for (Thread t : threads) {
            t.join();
        }
    }

    private static Shard shard(Store s, int i) {
        return (Shard) s.shards[i].get();
    }

    /** What was counted is there. */
    private static String check(Store s, int i) {
        Shard shard = shard(s, i);
        int count = s.counts[i];
        if (shard.id != s.ids[i]) {
            return "at place " + i + " is shard " + shard.id + " instead of " + s.ids[i];
        }
        if (shard.last < count - 1 || shard.last > count) {
            return "shard " + shard.id + " has last " + shard.last + ", counted are " + count;
        }
        for (int k = 0; k < count; k++) {
            if (!(shard.id + "-" + k).equals(shard.entries.get(k))) {
                return "shard " + shard.id + " lacks " + k + " of " + count + ": " + shard.entries.get(k);
            }
        }
        return shard.entries.size() > count + 1 ? "shard " + shard.id + " has " + shard.entries.size() + " entries, counted are " + count : null;
    }

    /** Each thread has every second place. */
    private static void work(Store s, int me, Random random) {
        for (;;) {
            int i = 2 * random.nextInt(SHARDS / 2) + me;
            if (random.nextInt(200) == 0) {
                swap(s, i, 2 * random.nextInt(SHARDS / 2) + me);
                continue;
            }
            boolean fresh = !s.shards[i].isLoaded();
            String wrong = fresh ? check(s, i) : null;
            if (wrong != null) {
                System.out.println("WRONG " + wrong);
                System.exit(3);
            }
            for (int n = 0; n < 50; n++) {
                if (s.counts[i] == MOST) {
                    replace(s, i);
                }
                put(s, i);
            }
        }
    }

    private static void put(Store s, int i) {
        Shard shard = shard(s, i);
        int k = s.counts[i];
        shard.entries.put(k, shard.id + "-" + k);
        shard.last = k;
        s.counts[i] = k + 1;
    }

    private static void replace(Store s, int i) {
        Towa.atomically(() -> {
            int id = s.next++;
            s.set(i, new OnDemand<>(new Shard(id)), id, 0);
        });
    }

    /** Without a look at what is behind them. */
    private static void swap(Store s, int i, int j) {
        Towa.atomically(() -> {
            OnDemand<?> holder = s.shards[i];
            int id = s.ids[i];
            int count = s.counts[i];
            s.set(i, s.shards[j], s.ids[j], s.counts[j]);
            s.set(j, holder, id, count);
        });
    }
}
