package systemtest.inside;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.towa.DurableRoot;
import io.towa.Durability;
import io.towa.NotDurableException;
import io.towa.OnDemand;
import io.towa.Towa;
import java.io.IOException;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Comparator;
import java.util.List;
import jdk.jfr.Recording;
import jdk.jfr.consumer.RecordedEvent;
import jdk.jfr.consumer.RecordingFile;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

/** What a flight recording says of a pool. */
class EventsIT {
    @DurableRoot
    private static Object root;

    @TempDir
    Path folder;

    @AfterEach
    void close() {
        Towa.close();
        root = null;
    }

    static final class Item {
        final int number;

        Item(int number) {
            this.number = number;
        }
    }

    private static List<Item> items(int n) {
        List<Item> all = new ArrayList<>();
        for (int i = 0; i < n; i++) {
            all.add(new Item(i));
        }
        return all;
    }

    private List<RecordedEvent> record(Recording r, Runnable work) throws IOException {
        Path file = folder.resolve("recording.jfr");
        try (r) {
            r.start();
            work.run();
            r.stop();
            r.dump(file);
        }
        return RecordingFile.readAllEvents(file).stream().filter(e -> e.getEventType().getName().startsWith("io.towa."))
            .sorted(Comparator.comparing(RecordedEvent::getStartTime)).toList();
    }

    private static List<RecordedEvent> named(List<RecordedEvent> all, String name) {
        return all.stream().filter(e -> e.getEventType().getName().equals("io.towa." + name)).toList();
    }

    private static Recording everything() {
        Recording r = new Recording();
        r.enable("io.towa.*");
        for (String name : new String[] {"Promotion", "Recovery", "Load", "Collection", "Commit"}) {
            r.enable("io.towa." + name).withThreshold(Duration.ZERO);
        }
        r.enable("io.towa.Refused");
        return r;
    }

    @Test
    void whatIsLoadedOnDemand() throws IOException {
        Path file = folder.resolve("pool.towa");
        Towa.open(file, Pool.SMALL);
        root = List.of(new OnDemand<>(items(10)), new OnDemand<>(items(20)));
        Towa.close();
        List<RecordedEvent> all = record(everything(), () -> {
            Towa.open(file, Pool.SMALL);
            for (int i = 0; i < 2; i++) {
                assertEquals(20, ((List<?>) ((OnDemand<?>) ((List<?>) root).get(1)).get()).size());
            }
        });
        assertEquals(3, only(all, "Recovery").getLong("objects"), "the list, the holders");
        RecordedEvent load = only(all, "Load");
        assertEquals(file.toString(), load.getString("file"));
        assertEquals(22, load.getLong("objects"));
        assertTrue(load.getDuration().toNanos() > 0);
        assertTrue(load.getStackTrace().getFrames().stream().anyMatch(f -> f.getMethod().getType().getName().equals(EventsIT.class.getName())));
        Pool.sound();
    }

    @Test
    void whatAPoolDoes() throws IOException {
        Path file = folder.resolve("pool.towa");
        root = null;
        Towa.open(file, Pool.SMALL);
        root = items(10);
        Towa.close();
        root = null;
        String[] guarantee = new String[1];
        List<RecordedEvent> all = record(everything(), () -> {
            Towa.open(file, Pool.SMALL);
            guarantee[0] = Towa.guarantee();
            assertEquals(guarantee[0], Towa.metrics().guarantee());
            root = items(1000);
            Towa.collect();
            assertThrows(NotDurableException.class, () -> root = new Object[] {"fine", Thread.currentThread()});
        });
        RecordedEvent recovery = only(all, "Recovery");
        assertEquals(file.toString(), recovery.getString("file"));
        // The list, its array, the items.
        assertEquals(12, recovery.getLong("objects"));
        assertTrue(recovery.getLong("bytes") > 0);
        assertTrue(!recovery.getBoolean("rewritten"));
        assertEquals(guarantee[0], recovery.getString("guarantee"));
        assertTrue(recovery.getDuration().toNanos() > 0);

        RecordedEvent promotion = only(all, "Promotion");
        assertEquals(1002, promotion.getLong("objects"));
        assertEquals(ArrayList.class.getName(), promotion.getClass("first").getName());
        // A header of 24 bytes and a field each, at the least.
        assertTrue(promotion.getLong("bytes") > 1000 * 28, () -> "" + promotion);
        assertTrue(promotion.getStackTrace().getFrames().stream().anyMatch(f -> f.getMethod().getType().getName().equals(EventsIT.class.getName())));

        RecordedEvent collection = only(all, "Collection");
        assertEquals(1002, collection.getLong("kept"));
        assertEquals(12, collection.getLong("freed"));
        assertTrue(collection.getDuration("pause").compareTo(collection.getDuration()) < 0, () -> "" + collection);
        assertTrue(collection.getDuration("pause").toNanos() > 0);

        RecordedEvent refused = only(all, "Refused");
        assertEquals(Thread.class.getName(), refused.getClass("refused").getName());
        assertTrue(refused.getString("path").contains("Object[1]"), () -> "" + refused);
        assertEquals(List.of(), named(all, "Commit"));
        Pool.sound();
    }

    private static RecordedEvent only(List<RecordedEvent> all, String name) {
        List<RecordedEvent> some = named(all, name);
        assertEquals(1, some.size(), () -> name + " of " + all);
        return some.get(0);
    }

    @Test
    void commits() throws IOException {
        Towa.open(folder.resolve("pool.towa"), Pool.SMALL.withDurability(Durability.POWER).withInterval(Duration.ofDays(1)));
        root = new long[100_000];
        Towa.sync();
        List<RecordedEvent> all = record(everything(), () -> {
            java.util.Arrays.fill((long[]) root, 7);
            Towa.sync();
            // Nothing to write: no event.
            Towa.sync();
            root = null;
            Towa.close();
        });
        List<RecordedEvent> commits = named(all, "Commit");
        assertEquals(2, commits.size(), () -> "" + all);
        long pages = commits.get(0).getLong("pages");
        assertTrue(pages >= 100_000 * 8 / 4096 && pages < 300, () -> "" + commits);
        assertEquals(pages * 4096, commits.get(0).getLong("bytes"));
        assertTrue(commits.get(0).getDuration("pause").compareTo(commits.get(0).getDuration()) < 0);
        // The one of close, made with the gate shut, by the thread that closes.
        assertEquals(Thread.currentThread().threadId(), commits.get(1).getThread().getJavaThreadId());
    }

    @Test
    void shortPromotionsAreNotRecordedUnlessAskedFor() throws IOException {
        Towa.open(folder.resolve("pool.towa"), Pool.SMALL);
        List<Item> list = new ArrayList<>(1000);
        root = list;
        list.add(new Item(-1));
        Recording r = new Recording();
        r.enable("io.towa.Promotion").withThreshold(Duration.ofSeconds(10));
        List<RecordedEvent> all = record(r, () -> list.addAll(items(100)));
        assertEquals(List.of(), all);
        list.clear();
        Recording zero = new Recording();
        zero.enable("io.towa.Promotion").withThreshold(Duration.ZERO);
        all = record(zero, () -> {
            for (int i = 0; i < 5; i++) {
                list.add(new Item(i));
            }
        });
        assertEquals(5, all.size());
        assertEquals(Item.class.getName(), all.get(4).getClass("first").getName());
    }
}
