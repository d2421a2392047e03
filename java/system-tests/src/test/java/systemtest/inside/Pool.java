package systemtest.inside;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.towa.PoolException;
import io.towa.PoolException.Reason;
import io.towa.Towa;
import io.towa.TowaOptions;
import java.nio.file.Path;
import java.util.List;

/** What the tests in this package share. They run with the agent; each opens a pool of its own, and closes it. */
final class Pool {
    static final TowaOptions SMALL = TowaOptions.DEFAULT.withCapacity(64 << 20);

    private Pool() {}

    static void sound() {
        assertEquals(List.of(), Towa.verify());
    }

    /** Opening must fail for that reason, in words that hold all of {@code words}, and leave no pool open. */
    static void refused(Path file, Reason reason, String... words) {
        PoolException e = assertThrows(PoolException.class, () -> Towa.open(file));
        assertEquals(reason, e.reason(), e.getMessage());
        says(e, words);
        says(e, file.getFileName().toString());
        assertTrue(!Towa.isOpen(), "a pool is open after " + e);
    }

    static void says(Throwable e, String... words) {
        for (String w : words) {
            assertTrue(e.getMessage().contains(w), "\"" + w + "\" is not in: " + e.getMessage());
        }
    }
}
