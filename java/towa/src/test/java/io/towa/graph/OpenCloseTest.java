package io.towa.graph;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.towa.Durability;
import java.nio.channels.FileChannel;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.util.List;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.io.TempDir;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.EnumSource;

/** A pool that is opened, synced and closed at awkward moments. */
@Timeout(60)
class OpenCloseTest {
    @TempDir
    Path dir;

    @AfterEach
    void close() {
        Thread.interrupted();
        DirectPool.close();
    }

    @ParameterizedTest
    @EnumSource(Durability.class)
    void anInterruptedThreadKeepsFileAndLock(Durability durability) throws Exception {
        Path file = dir.resolve("p");
        Thread.currentThread().interrupt();
        DirectPool.open(file, 64 << 20, durability);
        DirectPool.setRoot(new byte[100]);
        DurableGraph.sync();
        assertTrue(Thread.interrupted());
        try (FileChannel other = FileChannel.open(file, StandardOpenOption.WRITE)) {
            assertEquals(null, other.tryLock());
        }
        byte[] large = new byte[20 << 20];
        large[7] = 7;
        DirectPool.setRoot(large);
        assertEquals(List.of(), Checker.check());
        Thread.currentThread().interrupt();
        DirectPool.close();
        assertTrue(Thread.interrupted());
        DirectPool.open(file, 64 << 20, durability);
        assertEquals(7, ((byte[]) DirectPool.root)[7]);
    }

    @ParameterizedTest
    @EnumSource(Durability.class)
    void closedBesideStoresToRootsAndSyncs(Durability durability) throws Exception {
        Path file = dir.resolve("p");
        DirectPool.open(file, 64 << 20, durability);
        boolean[] stop = new boolean[1];
        Throwable[] failure = new Throwable[1];
        Thread[] others = {new Thread(() -> {
            for (int i = 0; !stop[0] && failure[0] == null; i++) {
                try {
                    DirectPool.root = new int[i % 1000];
                    Roots.stored("io/towa/graph/DirectPool", "root");
                } catch (Throwable e) {
                    failure[0] = e;
                }
            }
        }), new Thread(() -> {
            while (!stop[0] && failure[0] == null) {
                try {
                    DurableGraph.sync();
                } catch (io.towa.PoolException e) {
                    // closed
                } catch (Throwable e) {
                    failure[0] = e;
                }
            }
        })};
        others[0].start();
        others[1].start();
        for (int i = 0; i < 20; i++) {
            Thread.sleep(10);
            DurableGraph.close();
            DirectPool.open(file, 64 << 20, durability);
        }
        stop[0] = true;
        others[0].join();
        others[1].join();
        assertEquals(null, failure[0]);
    }
}
