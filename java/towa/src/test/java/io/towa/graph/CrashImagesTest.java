package io.towa.graph;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

/** No image that a crash can leave is wrong; and every write-back and fence is there for a reason that the images find. */
class CrashImagesTest {
    @TempDir
    Path dir;

    @Test
    void everyImageIsSound() throws Exception {
        long images = 0;
        long start = System.nanoTime();
        for (long seed = 1; seed <= 5; seed++) {
            CrashImages c = CrashImages.of(dir, seed, 400, Long.MAX_VALUE, null, new CrashRecorder[1]);
            assertNull(c.broken, "seed " + seed + ", image " + c.images);
            images += c.images;
            System.out.println("seed " + seed + ": " + c.images + " images");
        }
        System.out.printf("%d images, %.1f s%n", images, (System.nanoTime() - start) / 1e9);
    }

    @Test
    void everyWriteBackAndFenceIsNeeded() throws Exception {
        CrashRecorder[] all = new CrashRecorder[1];
        CrashImages.of(dir, 1, 400, 0, null, all);
        // The fence after these words is followed by another, of the promotion that needs them, before anything refers to what it made.
        // That the numbers of sections are taken durably, MomentsTest looks at: it takes two openings to notice.
        List<String> covered = List.of("UndoLog.begin putLongDurably's fence", "UndoLog.begin putLongDurably's writeBack", "Collector.free putLongDurably's fence", "PoolFile.advance putLongDurably's fence",
            "Records.add putLongDurably's fence", "UndoLog.rollBack putLongDurably's fence");
        List<String> unnoticed = new ArrayList<>();
        for (String site : all[0].sites.keySet()) {
            if (covered.contains(site.replaceFirst(":[0-9]+", ""))) {
                continue;
            }
            String found = null;
            long images = 0;
            for (long seed = 1; seed <= 6 && found == null; seed++) {
                CrashImages c = CrashImages.of(dir, seed, 400, Long.MAX_VALUE, site, new CrashRecorder[1]);
                found = c.broken;
                images += c.images;
            }
            System.out.println(site + " (" + all[0].sites.get(site) + "): " + (found == null ? "NOT NOTICED, " : "") + images + " images; " + found);
            if (found == null) {
                unnoticed.add(site);
            }
        }
        assertTrue(all[0].sites.size() > 15);
        assertEquals(List.of(), unnoticed);
    }
}
