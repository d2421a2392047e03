package towabench.micro;

import java.util.ArrayList;
import java.util.List;
import java.util.function.IntConsumer;
import towabench.Stats;

/** Times a loop that does something some times. */
final class Clock {
    private Clock() {}

    /** Nanoseconds for one operation: median of {@code rounds} after two that warm up. {@code loop} does as many operations as it is told. */
    static double nanos(int operations, int rounds, IntConsumer loop) {
        List<Double> each = new ArrayList<>();
        for (int r = 0; r < rounds + 2; r++) {
            long began = System.nanoTime();
            loop.accept(operations);
            if (r >= 2) {
                each.add((System.nanoTime() - began) / (double) operations);
            }
        }
        return Stats.median(each);
    }

    /** Bytes of live objects on the heap. */
    static long live() {
        for (int i = 0; i < 3; i++) {
            System.gc();
        }
        Runtime r = Runtime.getRuntime();
        return r.totalMemory() - r.freeMemory();
    }
}
