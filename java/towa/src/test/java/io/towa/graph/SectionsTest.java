package io.towa.graph;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.towa.Durability;
import io.towa.TowaException;
import io.towa.medium.Nvm;
import io.towa.pool.Allocator;
import io.towa.pool.Layout;
import io.towa.pool.UndoLog;
import java.nio.file.Path;
import java.util.List;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

/** What Towa.atomically stores is undone as long as it has not ended, and stays when it has. */
class SectionsTest {
    @TempDir
    Path dir;

    static class Box {
        Object reference;
        long number;
        int small;
        int other;
    }

    private Box box;
    private long at;

    @BeforeEach
    void open() {
        DirectPool.open(dir.resolve("p"), 64 << 20, Durability.PROCESS);
        box = new Box();
        DirectPool.setRoot(box);
        at = Replicas.position(Replicas.find(box));
    }

    @AfterEach
    void close() {
        DirectPool.close();
    }

    private long number() {
        return Nvm.getLong(at + ClassInfos.of(box).nvm[ClassInfos.of(box).slotAt(DirectPool.offset(box, "number"))]);
    }

    private static void rollBack() {
        UndoLog.open(DurableGraph.pool(), DurableGraph.allocator());
    }

    @Test
    void whatHasEndedStays() {
        Sections.run(() -> {
            DirectPool.set(box, "number", 5L);
            Sections.run(() -> DirectPool.set(box, "number", 6L));
            assertTrue(Nvm.getLong(Layout.UNDO) != Layout.NONE);
        });
        assertEquals(Layout.NONE, Nvm.getLong(Layout.UNDO));
        assertEquals(6, number());
        assertEquals(List.of(), Checker.check());
    }

    /** While the gate is shut the committer takes the pages that were stored to: a page that is marked in between would be forgotten. */
    @Test
    void aSectionThatBeginsStoresNothingWhileTheGateIsShut() throws Exception {
        long before = Nvm.getLong(Layout.SECTIONS);
        Thread first = new Thread(() -> Sections.run(() -> {}));
        Gate.shut();
        try {
            first.start();
            first.join(300);
            assertEquals(before, Nvm.getLong(Layout.SECTIONS));
            assertTrue(first.isAlive());
        } finally {
            Gate.open();
        }
        first.join();
        assertTrue(Nvm.getLong(Layout.SECTIONS) > before);
    }

    @Test
    void whatHasNotEndedIsUndone() {
        Box first = new Box();
        DirectPool.set(box, "reference", first);
        DirectPool.set(box, "number", 7L);
        byte[] bytes = new byte[10_000];
        for (int i = 0; i < bytes.length; i++) {
            bytes[i] = (byte) i;
        }
        DirectPool.set(first, "reference", bytes);
        long array = Replicas.position(Replicas.find(bytes));
        Sections.run(() -> {
            DirectPool.set(box, "number", 8L);
            DirectPool.set(box, "small", 9);
            DirectPool.set(box, "reference", new Box());
            DirectPool.set(box, "number", 10L);
            for (int i = 3; i < 9_997; i++) {
                bytes[i] = 77;
            }
            Stores.range(bytes, 3, 9_994);
            // Another thread's store beside one of ours.
            Thread t = new Thread(() -> DirectPool.set(box, "other", 4));
            t.start();
            join(t);
            rollBack();
        });
        assertEquals(7, number());
        box.number = 7;
        box.small = 0;
        box.reference = first;
        for (int i = 0; i < bytes.length; i++) {
            assertEquals((byte) i, Nvm.getByte(array + Layout.DATA + i));
            bytes[i] = (byte) i;
        }
        assertEquals(List.of(), Checker.check(), "and the other thread's store is there");
        assertEquals(4, box.other);
    }

    /** Another thread's promotion of the object has begun and not copied it yet: what lies in its replica is of something that was freed. */
    @Test
    void whatACopyHasYetToReplaceIsNotLogged() {
        Box grey = new Box();
        ClassInfo c = ClassInfos.of(grey);
        Allocator allocator = DurableGraph.allocator();
        Allocator.Cache cache = allocator.acquire();
        long replica = allocator.allocate(cache, c.replicaBytes(grey));
        allocator.release(cache);
        Nvm.putInt(replica + Layout.CLASS_INDEX, c.index);
        long reference = replica + c.nvm[c.slotAt(DirectPool.offset(grey, "reference"))];
        Nvm.putLong(reference, at + 16);
        System.identityHashCode(grey);
        assertEquals(0, Replicas.insert(grey, Replicas.grey(replica, 5), c.replicaBytes(grey)));
        Sections.run(() -> {
            DirectPool.set(grey, "reference", null);
            DirectPool.set(grey, "number", 3L);
            assertEquals(0, Nvm.getLong(reference), "it is mirrored");
            assertEquals(Layout.NONE, Nvm.getLong(Layout.UNDO));
            DirectPool.set(box, "number", 4L);
            assertTrue(Nvm.getLong(Layout.UNDO) != Layout.NONE);
        });
        Replicas.remove(grey, replica);
        assertEquals(List.of(), Checker.check());
    }

    @Test
    void anExceptionLeavesWhatWasStored() {
        assertThrows(IllegalStateException.class, () -> Sections.run(() -> {
            DirectPool.set(box, "number", 5L);
            throw new IllegalStateException();
        }));
        assertEquals(Layout.NONE, Nvm.getLong(Layout.UNDO));
        assertEquals(5, number());
    }

    @Test
    void aCollectionInItsMidstKeepsWhatItWouldBringBack() {
        Box first = new Box();
        first.reference = "kept";
        DirectPool.set(box, "reference", first);
        long position = Replicas.position(Replicas.find(first));
        Sections.run(() -> {
            // A store to what then leaves the graph: its memory must not become another's, or undoing would spoil that.
            Box gone = new Box();
            DirectPool.set(box, "reference", gone);
            DirectPool.set(gone, "number", 1L);
            DirectPool.set(box, "reference", (Object) null);
            Collector.collect();
            assertTrue(Replicas.durable(first));
            assertTrue(Replicas.durable(gone));
            for (int i = 0; i < 1000; i++) {
                Box filler = new Box();
                filler.reference = "filler";
                DirectPool.set(box, "reference", filler);
            }
            rollBack();
            assertEquals(position, Nvm.getLong(at + Layout.DATA));
        });
        box.reference = first;
        assertEquals(List.of(), Checker.check());
        Collector.collect();
        assertEquals(List.of(), Checker.check());
    }

    @Test
    void sectionsOfManySizes() {
        long[] numbers = new long[100_000];
        DirectPool.set(box, "reference", numbers);
        long array = Replicas.position(Replicas.find(numbers)) + Layout.DATA;
        for (int n = 1; n <= numbers.length; n = n * 3 + 1) {
            int count = n;
            long[] before = numbers.clone();
            Sections.run(() -> {
                for (int i = 0; i < count; i++) {
                    numbers[i] += i + 1;
                    Stores.element(numbers, i);
                }
                if (count % 2 == 0) {
                    rollBack();
                    System.arraycopy(before, 0, numbers, 0, count);
                }
            });
            for (int i = 0; i < numbers.length; i++) {
                assertEquals(numbers[i], Nvm.getLong(array + 8L * i));
            }
            Collector.collect();
        }
        assertEquals(List.of(), Checker.check());
    }

    @Test
    void thePoolCannotBeClosedInside() {
        assertThrows(TowaException.class, () -> Sections.run(DurableGraph::close));
    }

    private static void join(Thread t) {
        try {
            t.join();
        } catch (InterruptedException e) {
            throw new AssertionError(e);
        }
    }
}
