package io.towa.graph;

import io.towa.TowaOptions;
import java.nio.file.Files;
import java.nio.file.Path;

/**
 * How fast recovery is: {@code make strings|links FILE COUNT}, then {@code recover FILE} in a JVM of its own.
 *
 * <p>strings: an array of strings of 448 Latin-1 letters, 24 + 448 bytes of text a replica (RBP: 10^6 strings, 472 MB). links: a chain of objects of 32 bytes in DRAM.
 */
final class RecoverySpeed {
    static final class Link {
        Link next;
        long a;
        int b;
    }

    private RecoverySpeed() {}

    public static void main(String[] args) throws Exception {
        Path file = Path.of(args[args.length > 2 ? 2 : 1]);
        if (args[0].equals("make")) {
            Files.deleteIfExists(file);
            SavedPool.root = args[1].equals("strings") ? strings(Integer.parseInt(args[3])) : links(Integer.parseInt(args[3]));
            long begin = System.nanoTime();
            DurableGraph.open(file, TowaOptions.DEFAULT.withCapacity(8L << 30), false);
            SavedPool.root(SavedPool.class, "root");
            DurableGraph.close();
            System.out.printf("promoted in %.2f s%n", (System.nanoTime() - begin) / 1e9);
            return;
        }
        long cpu = cpuNanos();
        DurableGraph.open(file, TowaOptions.DEFAULT, false);
        // On a machine that others use, the processor's time says more than the clock.
        System.out.printf("open: %.3f s of processor time%n", (cpuNanos() - cpu) / 1e9);
        Recovery.Breakdown b = Recovery.last();
        double gb = b.bytes() / 1e9;
        System.out.printf("%d objects, %.3f GB: %.3f s, walk %.3f s, gc %.3f s: %.3f s/GB, without gc %.3f s/GB%n", b.objects(), gb, b.seconds(),
            b.walkSeconds(), b.gcSeconds(), b.seconds() / gb, (b.seconds() - b.gcSeconds()) / gb);
        System.out.println(b);
        if (args.length > 3) {
            System.out.println(Checker.check());
        }
        DurableGraph.close();
    }

    private static long cpuNanos() {
        return ((com.sun.management.OperatingSystemMXBean) java.lang.management.ManagementFactory.getOperatingSystemMXBean()).getProcessCpuTime();
    }

    private static Object strings(int n) {
        String[] all = new String[n];
        for (int i = 0; i < n; i++) {
            all[i] = String.format("%09d", i).repeat(50).substring(0, 448);
        }
        return all;
    }

    private static Object links(int n) {
        Link head = null;
        for (int i = n - 1; i >= 0; i--) {
            Link l = new Link();
            l.next = head;
            l.a = i;
            l.b = -i;
            head = l;
        }
        return head;
    }
}
