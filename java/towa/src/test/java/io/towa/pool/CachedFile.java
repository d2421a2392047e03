package io.towa.pool;

import java.io.IOException;
import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.BitSet;
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
 *   failure between syncs    the same, and told by the next sync of this process, or of the next one if no other program was told before
 *   kill     nothing changes
 *   memory pressure, eviction    a folio (8 pages) that is clean is read from the device again; but only pressure, where the file system ignores advice
 *   power cut    of each dirty sector the device has one of the versions since it was clean; nothing else is left
 * </pre>
 *
 * <p>On ext4 a page that was never on the device gets there whole, and its block counts as unwritten, which reads as zeros, until that succeeds. If
 * it fails, the cached page forgets that its block is unwritten: the page may be written and synced again, and the block still reads as
 * zeros, unless the page left the cache before it was written again.
 */
final class CachedFile implements Disk {
    private static final int SECTOR = 512;
    private static final int PAGE = 4096;
    private static final int PAGES_TOGETHER = 8 * PAGE;

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
    /** Pages whose block does not count as unwritten; and those in the cache that forgot that theirs does. */
    private final BitSet written = new BitSet();
    private final BitSet forgetful = new BitSet();
    /** A write-back failed: not yet told to this process, to any. */
    private boolean untold;
    private boolean toldToNone;
    /** Syncs until one fails, and steps until writes between syncs fail and until the process is killed; negative: never. */
    int failsIn = -1;
    int failsBetween = -1;
    int killsIn = -1;
    /** Syncs to be left out: of those from now on the one with this number; -1: none. */
    int forgetsIn = -1;
    /** There is memory: no page leaves the cache by itself. */
    boolean ample;
    /** Faults of the program that a test must find: no sync does anything; writing what is there already leaves pages clean. */
    boolean forgets;
    boolean keepsClean;
    /** A fault likewise: no page is evicted. */
    boolean keepsCached;
    /** What the file system is: ext4, or one that has no unwritten blocks and ignores advice to evict. */
    private final boolean ext4;

    CachedFile(byte[] content, boolean ext4, Random random) {
        this.ext4 = ext4;
        this.random = random;
        shown = content.clone();
        size = content.length;
        device = content.clone();
        deviceSize = size;
        noteWritten();
    }

    private void noteWritten() {
        for (int at = 0; at < device.length; at++) {
            if (device[at] != 0) {
                written.set(at / PAGE);
            }
        }
    }

    private void step() {
        if (dead || killsIn >= 0 && killsIn-- == 0) {
            dead = true;
            throw new Killed();
        }
        if (failsBetween >= 0 && failsBetween-- == 0) {
            dirtyPages().stream().filter(p -> random.nextBoolean()).forEach(p -> writeBack(p, true));
            untold = true;
            toldToNone = true;
        }
        if (toldToNone && random.nextInt(4) == 0) {
            // Another program syncs the file.
            dirtyPages().stream().forEach(p -> writeBack(p, false));
            toldToNone = false;
        }
        if (!ample && random.nextInt(50) == 0) {
            for (int at = 0; at < size; at += PAGES_TOGETHER) {
                if (random.nextBoolean()) {
                    dropClean(at);
                }
            }
        }
    }

    private BitSet dirtyPages() {
        BitSet pages = new BitSet();
        dirty.keySet().forEach(s -> pages.set(s / (PAGE / SECTOR)));
        return pages;
    }

    /** What is dirty of a page goes to the device, or some of it; it is clean afterwards. */
    private void writeBack(int page, boolean fails) {
        Map<Integer, List<byte[]>> sectors = new TreeMap<>();
        for (int s = page * PAGE / SECTOR; s < (page + 1) * PAGE / SECTOR; s++) {
            List<byte[]> versions = dirty.remove(s);
            if (versions != null) {
                sectors.put(s, versions);
            }
        }
        if (ext4 && !written.get(page)) {
            if (fails && random.nextBoolean()) {
                forgetful.set(page);
            }
            if (forgetful.get(page)) {
                return;
            }
            written.set(page);
            fails = false;
        }
        boolean some = fails;
        sectors.forEach((sector, versions) -> {
            if (!some || random.nextBoolean()) {
                toDevice(sector, versions.get(versions.size() - 1));
            }
        });
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
        failsBetween = -1;
        forgetsIn = -1;
        untold = toldToNone;
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

    /** The folio that begins there, if it is clean. */
    private void dropClean(int at) {
        for (int s = at / SECTOR; s < (at + PAGES_TOGETHER) / SECTOR; s++) {
            if (dirty.containsKey(s)) {
                return;
            }
        }
        int there = Math.max(0, Math.min(PAGES_TOGETHER, device.length - at));
        byte[] read = new byte[PAGES_TOGETHER];
        System.arraycopy(device, Math.min(device.length, at), read, 0, there);
        System.arraycopy(read, 0, shown, at, Math.min(PAGES_TOGETHER, shown.length - at));
        forgetful.clear(at / PAGE, (at + PAGES_TOGETHER) / PAGE);
    }

    /** Power is lost. */
    void cut() {
        dirtyPages().stream().forEach(this::cut);
        if (!sizes.isEmpty() && random.nextBoolean()) {
            setDeviceSize(sizes.get(random.nextInt(sizes.size())));
        }
        clean();
        shown = device.clone();
        size = deviceSize;
        noteWritten();
    }

    private void cut(int page) {
        boolean whole = ext4 && !written.get(page);
        if (whole && (forgetful.get(page) || random.nextBoolean())) {
            return;
        }
        for (int s = page * PAGE / SECTOR; s < (page + 1) * PAGE / SECTOR; s++) {
            List<byte[]> versions = dirty.getOrDefault(s, List.of());
            int n = versions.isEmpty() ? 0 : random.nextInt(versions.size() + (whole ? 0 : 1));
            if (n < versions.size()) {
                toDevice(s, versions.get(n));
            }
        }
    }

    private void setDeviceSize(int to) {
        device = grown(device, to);
        Arrays.fill(device, Math.min(device.length, to), device.length, (byte) 0);
        deviceSize = to;
    }

    private void clean() {
        dirty.clear();
        sizes.clear();
        forgetful.clear();
        untold = false;
        toldToNone = false;
    }

    /** The file was removed, or made anew: nothing is in it. */
    void empty() {
        clean();
        written.clear();
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
        dirtyPages().stream().forEach(p -> writeBack(p, fails));
        // Sizes are metadata, of which the file system keeps its own log.
        setDeviceSize(size);
        sizes.clear();
        boolean told = fails || untold;
        untold = false;
        toldToNone = false;
        if (told) {
            throw new IOException("Input/output error");
        }
    }

    @Override
    public void evict(long from, long bytes) {
        step();
        if (!ext4 || keepsCached) {
            return;
        }
        long end = bytes == 0 ? size : Math.min(size, from + bytes);
        for (long at = from; at < end; at += PAGES_TOGETHER) {
            dropClean((int) at);
        }
    }

    @Override
    public void truncate(long to) {
        step();
        if (to < size) {
            Arrays.fill(shown, (int) to, size, (byte) 0);
            dirty.keySet().removeIf(s -> s * SECTOR >= to);
            written.clear((int) (to + PAGE - 1) / PAGE, Math.max(written.length(), (int) (to + PAGE - 1) / PAGE));
            forgetful.clear((int) (to + PAGE - 1) / PAGE, Math.max(forgetful.length(), (int) (to + PAGE - 1) / PAGE));
            size = (int) to;
            sizes.add(size);
        }
    }

    @Override
    public long size() {
        return size;
    }
}
