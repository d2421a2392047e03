package towa.weave;

import static org.junit.jupiter.api.Assertions.assertNull;

import io.towa.DurableRoot;
import io.towa.Towa;
import io.towa.TowaOptions;
import io.towa.graph.Checker;
import java.nio.file.Files;
import java.nio.file.Path;

/** A pool for this machine's life, and a root to put into it what is to be durable. */
final class Fixture {
    @DurableRoot static Object[] holder;

    private Fixture() {}

    /** On memory where there is some. */
    static Path file(String name) throws Exception {
        Path memory = Path.of("/dev/shm");
        Path file = Files.isWritable(memory) ? Files.createTempFile(memory, name, ".towa") : Files.createTempFile(name, ".towa");
        Files.delete(file);
        file.toFile().deleteOnExit();
        return file;
    }

    static void open() throws Exception {
        Towa.open(file("weave"), TowaOptions.DEFAULT.withCapacity(1 << 30));
    }

    static void hold(Object o) {
        if (holder == null) holder = new Object[1];
        holder[0] = o;
        same(o, "when it became durable");
    }

    static void same(Object o, String when) {
        assertNull(Checker.difference(o), when);
    }

    /** Runs the case, compares after each call; on failure says at which. */
    static void run(Cases.Case c, int from, int to) throws Throwable {
        Cases.Action a = c.action();
        Object target = c.target();
        for (int i = from; i < to; i++) {
            a.run(i);
            String bad = Checker.difference(target);
            if (bad != null) throw new AssertionError(c.name() + ", call " + i + ": " + bad);
        }
    }
}
