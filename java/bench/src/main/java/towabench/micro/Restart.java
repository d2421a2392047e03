package towabench.micro;

import io.towa.DurableRoot;
import io.towa.OnDemand;
import io.towa.Towa;
import io.towa.TowaOptions;
import java.lang.management.GarbageCollectorMXBean;
import java.lang.management.ManagementFactory;
import java.lang.ref.Reference;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;

/**
 * Fills a pool and is killed; opens it again, and is timed.
 *
 * <pre>
 *   Restart fill POOL strings|small|parts COUNT   ends by killing itself; @filled seconds bytes
 *   Restart open POOL                        @restart objects bytes open_seconds recovery_seconds gc_seconds gcs cpu_seconds   @check true   @end
 *                                            of parts also   @on_demand parts first_seconds all_seconds
 *   Restart plain strings|small COUNT        makes as many such objects, without Towa, with two threads; @plain seconds   @end
 * </pre>
 */
public final class Restart {
    /** The thesis' string program: the n-th string is a fixed one joined with n, some 472 bytes an element in the pool. */
    static final class Strings {
        static final String FIXED = "durable ".repeat(46);
        final String[] strings;
        int i;

        Strings(int count) {
            strings = new String[count];
        }
    }

    /** 32 bytes on the heap. */
    static final class Small {
        long number;
        int half;
        Small other;
    }

    static final class Smalls {
        final Small[] all;
        int i;

        Smalls(int count) {
            all = new Small[count];
        }
    }

    /** The same strings, each 10,000 behind an OnDemand. */
    static final class Parts {
        static final int EACH = 10_000;
        final OnDemand<?>[] parts;
        int i;

        Parts(int count) {
            parts = new OnDemand<?>[count / EACH];
        }

        String[] part(int k) {
            return (String[]) parts[k].get();
        }
    }

    @DurableRoot static Object data;

    private Restart() {}

    public static void main(String[] args) throws Exception {
        if (args[0].equals("plain")) {
            plain(args[1].equals("strings"), Integer.parseInt(args[2]));
            return;
        }
        TowaOptions how = TowaOptions.DEFAULT.withCapacity(16L << 30);
        if (args[0].equals("fill")) {
            long began = System.nanoTime();
            Towa.open(Path.of(args[1]), how);
            fill(args[2], Integer.parseInt(args[3]));
            System.out.println("@filled " + (System.nanoTime() - began) / 1e9 + " " + Towa.metrics().usedBytes());
            System.out.flush();
            // As a crash would: nothing is closed.
            new ProcessBuilder("kill", "-9", Long.toString(ProcessHandle.current().pid())).start().waitFor();
            Thread.sleep(10_000);
        }
        // What the first use of the management classes costs is not the recovery's.
        long gcBefore = gcMillis();
        long gcs = gcCount();
        long cpu = cpuNanos();
        long began = System.nanoTime();
        Towa.open(Path.of(args[1]), how);
        double seconds = (System.nanoTime() - began) / 1e9;
        double gc = (gcMillis() - gcBefore) / 1e3;
        cpu = cpuNanos() - cpu;
        System.out.println("@restart " + Towa.metrics().objects() + " " + Towa.metrics().usedBytes() + " " + seconds + " " + Towa.metrics().recoverySeconds() + " "
            + gc + " " + (gcCount() - gcs) + " " + cpu / 1e9);
        if (data instanceof Parts p) {
            loadAll(p);
        }
        System.out.println("@check " + check());
        System.out.println("@end");
    }

    private static void loadAll(Parts p) {
        long began = System.nanoTime();
        p.part(p.i / 2);
        double first = (System.nanoTime() - began) / 1e9;
        for (int k = 0; k < p.i; k++) {
            p.part(k);
        }
        System.out.println("@on_demand " + p.i + " " + first + " " + (System.nanoTime() - began) / 1e9);
    }

    private static void fill(String kind, int count) {
        if (kind.equals("parts")) {
            Parts p = new Parts(count);
            data = p;
            while (p.i < p.parts.length) {
                String[] part = new String[Parts.EACH];
                for (int k = 0; k < part.length; k++) {
                    part[k] = Strings.FIXED + (p.i * Parts.EACH + k);
                }
                p.parts[p.i] = new OnDemand<>(part);
                p.i++;
            }
        } else if (kind.equals("strings")) {
            Strings s = new Strings(count);
            data = s;
            while (s.i < count) {
                s.strings[s.i] = Strings.FIXED + s.i;
                s.i++;
            }
        } else {
            Smalls s = new Smalls(count);
            data = s;
            while (s.i < count) {
                s.all[s.i] = small(s.i, s.all[s.i / 2]);
                s.i++;
            }
        }
    }

    /** What a recovery cannot do without: the JVM's memory has to be asked from the system and the objects to be made. */
    private static void plain(boolean strings, int count) throws InterruptedException {
        long began = System.nanoTime();
        Object[] all = strings ? new String[count] : new Small[count];
        List<Thread> threads = new ArrayList<>();
        for (int part = 0; part < 2; part++) {
            int from = part * (count / 2);
            int to = part == 0 ? count / 2 : count;
            threads.add(Thread.ofPlatform().start(() -> {
                for (int k = from; k < to; k++) {
                    all[k] = strings ? Strings.FIXED + k : small(k, (Small) all[Math.max(from, k - 1)]);
                }
            }));
        }
        for (Thread thread : threads) {
            thread.join();
        }
        System.out.println("@plain " + (System.nanoTime() - began) / 1e9);
        System.out.println("@end");
        Reference.reachabilityFence(all);
    }

    private static Small small(int number, Small other) {
        Small small = new Small();
        small.number = number;
        small.half = number / 2;
        small.other = other;
        return small;
    }

    private static boolean check() {
        if (data instanceof Parts p) {
            for (int k = 0; k < p.i * Parts.EACH; k++) {
                if (!p.part(k / Parts.EACH)[k % Parts.EACH].equals(Strings.FIXED + k)) {
                    return false;
                }
            }
            return p.i == p.parts.length;
        }
        if (data instanceof Strings s) {
            for (int k = 0; k < s.i; k++) {
                if (!s.strings[k].equals(Strings.FIXED + k)) {
                    return false;
                }
            }
            return s.i == s.strings.length;
        }
        Smalls s = (Smalls) data;
        for (int k = 1; k < s.i; k++) {
            if (s.all[k].number != k || s.all[k].other.number != k / 2 && k / 2 != k) {
                return false;
            }
        }
        return s.i == s.all.length;
    }

    /** Of the whole process: what the opening would take on an idle machine, were it of one thread. */
    private static long cpuNanos() {
        return ((com.sun.management.OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean()).getProcessCpuTime();
    }

    private static long gcMillis() {
        return ManagementFactory.getGarbageCollectorMXBeans().stream().mapToLong(GarbageCollectorMXBean::getCollectionTime).sum();
    }

    private static long gcCount() {
        return ManagementFactory.getGarbageCollectorMXBeans().stream().mapToLong(GarbageCollectorMXBean::getCollectionCount).sum();
    }
}
