package io.towa.graph;

import io.towa.TowaOptions;
import io.towa.medium.Nvm;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.function.Consumer;

/** Images of a pool as a killed process, or the loss of power, leaves it: after each of the stores, or around each of the fences, or some of them if they are many. */
final class CrashAt {
    private static final int MOST = 400;

    private CrashAt() {}

    /** Recovers the pool at {@code p}, whose file was {@code image}, and adds what the file was after each store. */
    static void run(Path p, byte[] image, TowaOptions options, List<byte[]> states) {
        run(image, () -> SavedPool.load(p, options), states);
    }

    /** Runs {@code opening}, which opens a pool whose file was {@code image} and does with it what it likes, and adds what the file was after each store. */
    static void run(byte[] image, Runnable opening, List<byte[]> states) {
        Stores stores = new Stores();
        Nvm.record(stores);
        try {
            opening.run();
        } finally {
            Nvm.record(null);
        }
        byte[] now = image.clone();
        int step = Math.max(1, stores.n / MOST);
        for (int i = 0; i < stores.n; i++) {
            int at = (int) stores.at[i];
            if (at + 8 > now.length) {
                now = Arrays.copyOf(now, (at >>> 20) + 1 << 20);
            }
            ByteBuffer b = ByteBuffer.wrap(now).order(ByteOrder.LITTLE_ENDIAN);
            switch (stores.bytes[i]) {
                case 1:
                    b.put(at, (byte) stores.bits[i]);
                    break;
                case 2:
                    b.putShort(at, (short) stores.bits[i]);
                    break;
                case 4:
                    b.putInt(at, (int) stores.bits[i]);
                    break;
                default:
                    b.putLong(at, stores.bits[i]);
            }
            if (i % step == 0 || i == stores.n - 1) {
                states.add(withFrontier(now));
            }
        }
    }

    /**
     * As {@link #run(byte[], Runnable, List)} for the loss of power on memory that keeps only what was written back, and fenced since: what is surely there after each
     * fence; and before it, what is there if of all that was written back since the thread's last one the last line alone has arrived.
     */
    static void withoutPower(byte[] image, Runnable opening, List<byte[]> states) {
        Thinned images = new Thinned();
        Thinned early = new Thinned();
        byte[] last = withoutPower(image, opening, images, early);
        states.addAll(images.kept);
        states.addAll(early.kept);
        states.add(withFrontier(last));
    }

    /** Shows every one of these images, which are not to be kept or changed, to {@code each}; in the thread that fences, so it should not throw. */
    static void withoutPower(byte[] image, Runnable opening, Consumer<byte[]> each) {
        each.accept(withoutPower(image, opening, each, each));
    }

    private static byte[] withoutPower(byte[] image, Runnable opening, Consumer<byte[]> after, Consumer<byte[]> before) {
        Kept kept = new Kept(image, after, before);
        Nvm.record(kept);
        try {
            opening.run();
        } finally {
            Nvm.record(null);
        }
        return kept.surely;
    }

    /** A copy that is as long as what is in it says; the file is allocated before the frontier moves. */
    private static byte[] withFrontier(byte[] image) {
        return Arrays.copyOf(image, (int) Math.max(ByteBuffer.wrap(image).order(ByteOrder.LITTLE_ENDIAN).getLong(8192), image.length));
    }

    /** Copies of images, of many of them each second, fourth, and so on. */
    private static final class Thinned implements Consumer<byte[]> {
        private final List<byte[]> kept = new ArrayList<>();
        private int met;
        private int every = 1;

        @Override
        public void accept(byte[] image) {
            if (met++ % every != 0) {
                return;
            }
            kept.add(withFrontier(image));
            if (kept.size() == MOST) {
                every *= 2;
                for (int i = MOST - 1; i > 0; i -= 2) {
                    kept.remove(i);
                }
            }
        }
    }

    /** The lines that were written back before a fence of the same thread, as they were then. */
    private static final class Kept implements Nvm.Recorder {
        private static final int LINE = 64;

        /** A line that was written back, and when. */
        private record Line(int at, byte[] content, long when) {}

        private byte[] stored;
        private byte[] surely;
        /** By thread, in the order of time; a line once. */
        private final Map<Thread, LinkedHashMap<Integer, Line>> writtenBack = new HashMap<>();
        /** By line, when that was written back which is surely there. */
        private final Map<Integer, Long> since = new HashMap<>();
        private final Consumer<byte[]> after;
        private final Consumer<byte[]> before;
        private long clock;

        Kept(byte[] image, Consumer<byte[]> after, Consumer<byte[]> before) {
            stored = image.clone();
            surely = image.clone();
            this.after = after;
            this.before = before;
        }

        @Override
        public synchronized void store(long where, long value, int size) {
            int at = (int) where;
            if (at + 8 > stored.length) {
                int bytes = (at >>> 20) + 1 << 20;
                stored = Arrays.copyOf(stored, bytes);
                surely = Arrays.copyOf(surely, bytes);
            }
            for (int i = 0; i < size; i++) {
                stored[at + i] = (byte) (value >>> 8 * i);
            }
        }

        @Override
        public synchronized void writeBack(long where, long size) {
            Map<Integer, Line> mine = writtenBack.computeIfAbsent(Thread.currentThread(), t -> new LinkedHashMap<>());
            for (int line = (int) where & -LINE; line < where + size; line += LINE) {
                if (line < stored.length) {
                    mine.remove(line);
                    mine.put(line, new Line(line, Arrays.copyOfRange(stored, line, line + LINE), ++clock));
                }
            }
        }

        @Override
        public synchronized void fence() {
            LinkedHashMap<Integer, Line> mine = writtenBack.getOrDefault(Thread.currentThread(), new LinkedHashMap<>());
            if (mine.size() > 1) {
                Line last = mine.lastEntry().getValue();
                byte[] old = Arrays.copyOfRange(surely, last.at, last.at + LINE);
                arrive(last);
                before.accept(surely);
                System.arraycopy(old, 0, surely, last.at, LINE);
            }
            for (Line l : mine.values()) {
                // Another thread may have brought there what came later.
                if (since.getOrDefault(l.at, 0L) < l.when) {
                    since.put(l.at, l.when);
                    arrive(l);
                }
            }
            mine.clear();
            after.accept(surely);
        }

        private void arrive(Line l) {
            System.arraycopy(l.content, 0, surely, l.at, LINE);
        }
    }

    /** What was stored, in order. */
    private static final class Stores implements Nvm.Recorder {
        private long[] at = new long[1 << 12];
        private long[] bits = new long[1 << 12];
        private int[] bytes = new int[1 << 12];
        private int n;

        @Override
        public synchronized void store(long where, long value, int size) {
            if (n == at.length) {
                at = Arrays.copyOf(at, 2 * n);
                bits = Arrays.copyOf(bits, 2 * n);
                bytes = Arrays.copyOf(bytes, 2 * n);
            }
            at[n] = where;
            bits[n] = value;
            bytes[n++] = size;
        }

        @Override
        public void writeBack(long where, long size) {}

        @Override
        public void fence() {}
    }
}
