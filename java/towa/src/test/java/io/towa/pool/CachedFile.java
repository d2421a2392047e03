package io.towa.pool;

import java.io.IOException;
import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.TreeMap;

/**
 * A file as Linux keeps it: what readers see is the page cache; the device gets sectors of it at any time, and all that is dirty with a sync.
 *
 * <pre>
 *   write    seen at once, by the next process too; dirty
 *   sync     dirty sectors are on the device, and clean
 *   sync that fails    some dirty sectors are on the device; all are clean: later syncs say that all is well, and the device never gets the others
 *   kill     nothing changes
 *   memory pressure    a clean page is read from the device again
 *   power cut    of each dirty sector the device has one of the versions since it was clean; nothing else is left
 * </pre>
 */
final class CachedFile implements Disk {
    private static final int SECTOR = 512;
    private static final int PAGE = 4096;

    /** The process was killed: nothing that it would have done after this is done. */
    static final class Killed extends RuntimeException {
        private static final long serialVersionUID = 1;

        Killed() {
            super("killed", null, false, false);
        }
    }

    private final Random random;
    private byte[] shown;
    private int size;
    private byte[] device;
    private int deviceSize;
    /** By sector: what it was since it was clean. Sizes likewise. */
    private final Map<Integer, List<byte[]>> dirty = new TreeMap<>();
    private final List<Integer> sizes = new ArrayList<>();
    private boolean dead;
    /** Syncs until one fails, and steps until the process is killed; negative: never. */
    int failsIn = -1;
    int killsIn = -1;
    /** Syncs to be left out: of those from now on the one with this number; -1: none. */
    int forgetsIn = -1;
    /** Faults of the program that a test must find: no sync does anything; writing what is there already leaves pages clean. */
    boolean forgets;
    boolean keepsClean;

    CachedFile(byte[] content, Random random) {
        this.random = random;
        shown = content.clone();
        size = content.length;
        device = content.clone();
        deviceSize = size;
    }

    private void step() {
        if (dead || killsIn >= 0 && killsIn-- == 0) {
            dead = true;
            throw new Killed();
        }
        if (random.nextInt(50) == 0) {
            forgetCleanPages();
        }
    }

    /** The process is gone. */
    void kill() {
        dead = true;
    }

    boolean dead() {
        return dead;
    }

    /** Another process opens the file. */
    void next() {
        dead = false;
        killsIn = -1;
        failsIn = -1;
        forgetsIn = -1;
    }

    private static byte[] part(byte[] from, int sector) {
        int at = sector * SECTOR;
        return at >= from.length ? new byte[SECTOR] : Arrays.copyOf(Arrays.copyOfRange(from, at, Math.min(from.length, at + SECTOR)), SECTOR);
    }

    private void toDevice(int sector, byte[] content) {
        device = grown(device, (sector + 1) * SECTOR);
        System.arraycopy(content, 0, device, sector * SECTOR, SECTOR);
    }

    private static byte[] grown(byte[] bytes, int least) {
        return bytes.length >= least ? bytes : Arrays.copyOf(bytes, Math.max(least, bytes.length + (bytes.length >> 1)));
    }

    private void forgetCleanPages() {
        for (int page = 0; page * PAGE < size; page++) {
            boolean clean = true;
            for (int s = page * PAGE / SECTOR; s < (page + 1) * PAGE / SECTOR; s++) {
                clean &= !dirty.containsKey(s);
            }
            if (clean && random.nextBoolean()) {
                byte[] there = new byte[PAGE];
                int n = Math.max(0, Math.min(PAGE, device.length - page * PAGE));
                System.arraycopy(device, Math.min(device.length, page * PAGE), there, 0, n);
                System.arraycopy(there, 0, shown, page * PAGE, Math.min(PAGE, shown.length - page * PAGE));
            }
        }
    }

    /** Power is lost. */
    void cut() {
        dirty.forEach((sector, versions) -> {
            int n = random.nextInt(versions.size() + 1);
            if (n < versions.size()) {
                toDevice(sector, versions.get(n));
            }
        });
        if (!sizes.isEmpty() && random.nextBoolean()) {
            setDeviceSize(sizes.get(random.nextInt(sizes.size())));
        }
        clean();
        shown = device.clone();
        size = deviceSize;
    }

    private void setDeviceSize(int to) {
        device = grown(device, to);
        Arrays.fill(device, Math.min(device.length, to), device.length, (byte) 0);
        deviceSize = to;
    }

    private void clean() {
        dirty.clear();
        sizes.clear();
    }

    /** The file was removed, or made anew: nothing is in it. */
    void empty() {
        clean();
        shown = new byte[0];
        device = new byte[0];
        size = 0;
        deviceSize = 0;
    }

    byte[] content() {
        return Arrays.copyOf(shown, size);
    }

    @Override
    public boolean read(ByteBuffer into, long at) {
        step();
        int n = (int) Math.min(into.remaining(), Math.max(0, size - at));
        if (n > 0) {
            into.put(shown, (int) at, n);
        }
        return !into.hasRemaining();
    }

    @Override
    public void write(ByteBuffer from, long at) {
        step();
        byte[] bytes = new byte[from.remaining()];
        from.get(bytes);
        int end = (int) at + bytes.length;
        if (keepsClean && end <= size && Arrays.equals(bytes, Arrays.copyOfRange(shown, (int) at, end))) {
            return;
        }
        shown = grown(shown, end);
        System.arraycopy(bytes, 0, shown, (int) at, bytes.length);
        for (int s = (int) at / SECTOR; s * SECTOR < end; s++) {
            dirty.computeIfAbsent(s, k -> new ArrayList<>()).add(part(shown, s));
        }
        if (end > size) {
            size = end;
            sizes.add(size);
        }
    }

    @Override
    public void force() throws IOException {
        step();
        if (forgets || forgetsIn >= 0 && forgetsIn-- == 0) {
            return;
        }
        boolean fails = failsIn >= 0 && failsIn-- == 0;
        dirty.forEach((sector, versions) -> {
            if (!fails || random.nextBoolean()) {
                toDevice(sector, versions.get(versions.size() - 1));
            }
        });
        // Sizes are metadata, of which the file system keeps its own log.
        setDeviceSize(size);
        clean();
        if (fails) {
            throw new IOException("Input/output error");
        }
    }

    @Override
    public void truncate(long to) {
        step();
        if (to < size) {
            Arrays.fill(shown, (int) to, size, (byte) 0);
            dirty.keySet().removeIf(s -> s * SECTOR >= to);
            size = (int) to;
            sizes.add(size);
        }
    }

    @Override
    public long size() {
        return size;
    }
}
