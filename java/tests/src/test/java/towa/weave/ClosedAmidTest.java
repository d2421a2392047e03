package towa.weave;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.towa.DurableRoot;
import io.towa.Towa;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import org.junit.jupiter.api.Test;

/** Pools that are closed while threads go on: what the close catches between an entry and its count is counted at the next opening. */
class ClosedAmidTest {
    @DurableRoot
    static Map<Object, Object> root;

    private static volatile boolean over;

    private static void storm(Map<Object, Object> m, int of) {
        while (!over) {
            m.put("key " + of, "value");
            m.remove("key " + of);
        }
    }

    private void rounds(boolean virtual) throws Exception {
        Path folder = Path.of(Files.isDirectory(Path.of("/dev/shm")) ? "/dev/shm" : System.getProperty("java.io.tmpdir"));
        Path file = Files.createTempFile(folder, "towa", ".towa");
        Files.delete(file);
        for (int round = 0; round < 25; round++) {
            root = null;
            Towa.open(file);
            Map<Object, Object> m = root == null ? new ConcurrentHashMap<>() : root;
            root = m;
            assertEquals(new ArrayList<>(m.keySet()).size(), m.size(), "round " + round);
            m.clear();
            assertTrue(m.isEmpty());
            over = false;
            List<Thread> all = new ArrayList<>();
            for (int i = 0; i < 2; i++) {
                int of = i;
                all.add(virtual ? Thread.ofVirtual().start(() -> storm(m, of)) : Thread.ofPlatform().daemon().start(() -> storm(m, of)));
            }
            Thread.sleep(3);
            Towa.close();
            over = true;
            for (Thread t : all) {
                t.join();
            }
        }
        Files.delete(file);
    }

    @Test
    void byThreads() throws Exception {
        rounds(false);
    }

    @Test
    void byVirtualThreads() throws Exception {
        rounds(true);
    }
}
