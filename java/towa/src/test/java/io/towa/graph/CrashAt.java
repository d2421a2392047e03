package io.towa.graph;

import io.towa.TowaOptions;
import io.towa.medium.Nvm;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.List;

/** Images of a pool as a killed process leaves it during a recovery: after each of the stores, or some of them if they are many. */
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
                // The file is allocated before the frontier moves.
                long frontier = b.getLong(8192);
                states.add(Arrays.copyOf(now, (int) Math.max(frontier, now.length)));
            }
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
