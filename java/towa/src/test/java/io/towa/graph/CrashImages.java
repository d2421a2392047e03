package io.towa.graph;

import io.towa.Durability;
import io.towa.medium.Nvm;
import io.towa.pool.Layout;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Random;

/**
 * What a crash may leave on a medium where a store is durable only after write-back and fence: images from the trace of a run, each judged.
 *
 * <pre>
 *   a line (64 bytes)   stores since it was last durable: s1 s2 s3 | s4 s5      its image holds any prefix of them
 *                                                    written back ^             a fence makes what was written back durable
 * </pre>
 *
 * <p>The script is a sequence of statements, each of which takes the pool from one state to the next by one store (or one section). So an image
 * must hold, after undoing, exactly the state before the present statement, or the one after it: nothing less is strict.
 */
final class CrashImages {
    private static final int LINE = 64;

    /** What a line has been stored and has not surely kept. */
    private static final class Line {
        final List<long[]> stores = new ArrayList<>();
        int writtenBack;
    }

    private final CrashRecorder trace;
    private final long[] states;
    private final byte[] image;
    private final HashMap<Long, Line> lines = new HashMap<>();
    private final PoolWalker walker;
    private final Random random;
    private long before;
    private long after;
    long images;
    /** The first image that no crash may leave; null if there is none. */
    String broken;

    private CrashImages(CrashRecorder trace, long[] states, byte[] base, long seed) {
        this.trace = trace;
        this.states = states;
        image = base;
        walker = new PoolWalker(image);
        random = new Random(seed);
    }

    /**
     * Runs the script, and judges images of it.
     *
     * @param without the write-back or fence that is left out, or null
     */
    static CrashImages of(Path dir, long seed, int steps, long most, String without, CrashRecorder[] recorded) throws Exception {
        Path file = Files.createTempFile(dir, "crash", ".towa");
        Files.delete(file);
        DirectPool.open(file, 16 << 20, Durability.PROCESS);
        CrashRecorder trace = new CrashRecorder(without);
        recorded[0] = trace;
        try {
            CrashScript script = new CrashScript(trace, seed);
            script.begin();
            byte[] base = Nvm.getBytes(0, 16 << 20);
            Nvm.record(trace);
            script.run(steps);
            Nvm.record(null);
            List<String> differs = Checker.check();
            if (!differs.isEmpty()) {
                throw new AssertionError(differs.toString());
            }
            CrashImages c = new CrashImages(trace, script.states(), base, seed);
            c.form(most);
            return c;
        } finally {
            Nvm.record(null);
            DirectPool.close();
            Files.delete(file);
        }
    }

    private void form(long most) {
        before = states[0];
        after = states[0];
        for (int i = 0; i < trace.count && broken == null && images < most; i++) {
            switch (trace.types[i]) {
                case CrashRecorder.STORE:
                    long at = trace.at[i] >>> 4;
                    lines.computeIfAbsent(at & -LINE, k -> new Line()).stores.add(new long[] {at, trace.bits[i], trace.at[i] & 15});
                    // Long runs of stores to one new replica say little: a sample of them.
                    if (lines.size() < 8 || random.nextInt(8) == 0) {
                        some(1, i);
                    }
                    break;
                case CrashRecorder.WRITE_BACK:
                    for (long l = trace.at[i] & -LINE; l < trace.at[i] + trace.bits[i]; l += LINE) {
                        Line line = lines.get(l);
                        if (line != null) {
                            line.writtenBack = line.stores.size();
                        }
                    }
                    break;
                case CrashRecorder.FENCE:
                    some(4, i);
                    fence();
                    judge("after the fence", i);
                    break;
                default:
                    some(2, i);
                    before = after;
                    after = states[(int) trace.at[i]];
                    some(1, i);
            }
        }
    }

    private void fence() {
        lines.values().removeIf(line -> {
            for (int i = 0; i < line.writtenBack; i++) {
                apply(line.stores.get(i), null);
            }
            line.stores.subList(0, line.writtenBack).clear();
            line.writtenBack = 0;
            return line.stores.isEmpty();
        });
    }

    /** Images of this moment: all that was stored; one line ahead of the others; one behind; anything. */
    private void some(int each, int event) {
        if (lines.isEmpty()) {
            return;
        }
        List<Line> all = new ArrayList<>(lines.values());
        one(all, -1, all.size(), event);
        for (int n = 0; n < each && broken == null; n++) {
            int chosen = random.nextInt(all.size());
            one(all, chosen, 1, event);
            one(all, chosen, 2, event);
            one(all, chosen, 3, event);
        }
    }

    private void one(List<Line> all, int chosen, int how, int event) {
        if (broken != null) {
            return;
        }
        List<long[]> undo = new ArrayList<>();
        for (int i = 0; i < all.size(); i++) {
            int n = all.get(i).stores.size();
            int prefix;
            if (chosen < 0) {
                prefix = n;
            } else if (how == 3) {
                prefix = random.nextInt(4) == 0 ? random.nextInt(n + 1) : random.nextBoolean() ? n : 0;
            } else {
                prefix = i == chosen == (how == 1) ? n : 0;
            }
            for (int k = 0; k < prefix; k++) {
                apply(all.get(i).stores.get(k), undo);
            }
        }
        judge(chosen < 0 ? "all stored" : how == 1 ? "one line ahead" : how == 2 ? "one line behind" : "any prefixes", event);
        for (int i = undo.size() - 1; i >= 0; i--) {
            apply(undo.get(i), null);
        }
    }

    private void apply(long[] store, List<long[]> undo) {
        int at = (int) store[0];
        int bytes = (int) store[2];
        long old = 0;
        for (int i = 0; i < bytes; i++) {
            old |= (image[at + i] & 0xffL) << 8 * i;
            image[at + i] = (byte) (store[1] >>> 8 * i);
        }
        if (undo != null) {
            undo.add(new long[] {at, old, bytes});
        }
    }

    private void judge(String how, int event) {
        images++;
        try {
            long state = walker.walk();
            if (state != before && state != after) {
                broken = "event " + event + ", " + how + ": a state that is neither before the statement nor after it";
            }
        } catch (PoolWalker.Broken e) {
            broken = "event " + event + ", " + how + ": " + e.getMessage();
        } catch (IndexOutOfBoundsException e) {
            broken = "event " + event + ", " + how + ": leads out of the file: " + e.getMessage();
        }
    }

    /** The state of the pool as it is mapped. */
    static long stateNow() {
        return new PoolWalker(Nvm.getBytes(0, (int) Nvm.getLong(Layout.FRONTIER))).walk();
    }
}
