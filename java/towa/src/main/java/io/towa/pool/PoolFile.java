package io.towa.pool;

import io.towa.Durability;
import io.towa.PoolException;
import io.towa.PoolException.Reason;
import io.towa.medium.DirtyPages;
import io.towa.medium.Nvm;
import io.towa.medium.SystemCalls;
import io.towa.medium.WriteBack;
import java.io.IOException;
import java.io.RandomAccessFile;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.nio.ByteBuffer;
import java.nio.channels.FileChannel;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.security.SecureRandom;
import jdk.internal.access.SharedSecrets;

/**
 * The pool's file: made or opened, locked against a second owner, mapped whole.
 *
 * <p>Creation: superblock "being made", words, sync, superblock "ready". A crash before the last leaves a file that holds nothing, and the
 * next opening makes it anew. Opening: {@link Opening}.
 *
 * <p>What must always hold: no store below the frontier can fail for want of room ({@link Room}). One process, and one opening in it, has
 * the lock; the file's name and the log's lead to the files that are open ({@link #requireNames}).
 */
public final class PoolFile implements AutoCloseable {
    private final String name;
    /** Where the file is, links followed. */
    private final Path path;
    private final RandomAccessFile file;
    private final FileChannel channel;
    private final Object fileKey;
    private Object logKey;
    private final Superblock superblock;
    private final Arena arena;
    private final boolean fresh;
    private final boolean wasClean;
    private final DirtyPages dirty;
    /** NAME.log, if the pool is committed to; else null. */
    private FileChannel log;
    private RedoLog redo;
    /** Address of a mapping that is not the arena's; -1: there is none. */
    private long privately = -1;
    private final Room room;
    /** A sync failed: what the file shows may not be on the device, and later syncs would not say so. */
    private volatile boolean unsynced;

    /**
     * Opens or makes the pool at {@code given}, and attaches {@link Nvm} to it.
     *
     * @param capacity the most bytes that the heap may get; 0: what it has, or 4 times the JVM's largest heap
     */
    public PoolFile(Path given, long capacity, Durability durability) {
        name = given.toString();
        RandomAccessFile opened = null;
        FileChannel beside = null;
        Arena mapped = null;
        try {
            boolean exists = Files.exists(given);
            OwnFile.checkLink(given);
            if (!exists) {
                OwnFile.makeUnlessThere(given);
            } else if (!Files.isRegularFile(given)) {
                throw new PoolException(Reason.FOREIGN, name + ": not a file; a pool of the Java door is one file");
            }
            path = given.toRealPath();
            opened = new RandomAccessFile(path.toFile(), "rw");
            file = opened;
            OwnFile.check(OwnFile.wayTo(descriptor(), path), name);
            channel = uninterruptible(file.getChannel());
            lock();
            fileKey = key(OwnFile.wayTo(descriptor(), path));
            OwnFile.checkLed(given, fileKey);
            Disk data = new Disk.Channel(channel);
            beside = openLog();
            Disk found = beside == null ? null : new Disk.Channel(beside);
            superblock = Superblock.isUnmade(channel) ? new Superblock() : Opening.superblock(name, data, found, roundUp(capacity));
            fresh = !superblock.ready;
            wasClean = superblock.clean;
            if (fresh) {
                refuseUsed();
                Opening.checkNew(name, found);
                make(data, capacity, durability);
                forceNames();
            }
            Opening opening = new Opening(name, data, found, superblock, durability);
            long wanted = Math.max(superblock.capacity, roundUp(capacity));
            opening.settle(durability, wanted);
            int pid = SystemCalls.process();
            if (durability == Durability.POWER) {
                redo = opening.enterForCommits(this::makeLog, wanted, randomStamp(), pid);
            } else if (opening.enter(durability, wanted, pid)) {
                Files.deleteIfExists(Path.of(logOf(path.toString())));
            }
            close(beside);
            beside = null;
            requireNames();
            mapped = Arena.ofShared();
            arena = mapped;
            dirty = durability == Durability.POWER ? new DirtyPages(superblock.capacity) : null;
            map(durability);
            room = new Room(name, channel, superblock.capacity);
            room.open(Nvm.getLong(Layout.FRONTIER));
        } catch (IOException e) {
            letGo(mapped, beside, opened);
            throw new PoolException(Reason.IO, name + ": " + e.getMessage() + " (" + e.getClass().getSimpleName() + ")", e);
        } catch (RuntimeException | Error e) {
            letGo(mapped, beside, opened);
            throw e;
        }
    }

    /** Ends an opening that failed. A mapping that is left keeps the open file, and with it the lock. */
    private void letGo(Arena mapped, FileChannel beside, RandomAccessFile opened) {
        Nvm.detach();
        unmap();
        if (mapped != null) {
            mapped.close();
        }
        close(beside);
        close(log);
        close(opened);
    }

    static String logOf(String pool) {
        return pool + ".log";
    }

    /** The log beside the file, to be read and written; null if there is none, and it is not to be made. */
    private FileChannel openLog(StandardOpenOption... how) throws IOException {
        return uninterruptible(OwnFile.open(Path.of(logOf(path.toString())), how));
    }

    private Disk makeLog() throws IOException {
        log = openLog(StandardOpenOption.CREATE);
        logKey = key(OwnFile.wayTo(SystemCalls.descriptor(log), Path.of(logOf(path.toString()))));
        forceNames();
        return new Disk.Channel(log);
    }

    /** A file that says it is being made has nothing in its heap yet. */
    private void refuseUsed() throws IOException {
        if (channel.size() > Layout.HEAP && RedoLog.numberAt(new Disk.Channel(channel), Layout.FRONTIER) > Layout.HEAP) {
            throw new PoolException(Reason.DAMAGED, name + ": its superblock says that it is being made, and its heap is in use; restore the file from a copy");
        }
    }

    /** Takes the lock of the file: of the open file, not of the process, so that no other close of it in this process gives it up. */
    private void lock() throws IOException {
        if (SystemCalls.lock(descriptor())) {
            return;
        }
        if (!SystemCalls.isLocked(descriptor())) {
            throw new PoolException(Reason.IO, name + ": the file system cannot lock it, so nothing would keep a second process out; use another file system");
        }
        throw new PoolException(Reason.BUSY, name + ": " + owner() + " has it open; end that one, or use another file");
    }

    private String owner() throws IOException {
        int pid = 0;
        try {
            pid = channel.size() == 0 ? 0 : Superblock.read(channel, name).pid;
        } catch (PoolException e) {
            // The file is being made, or is none.
        }
        return pid == SystemCalls.process() ? "this process" : pid > 0 ? "another process (" + pid + ", as it knows itself)" : "another process";
    }

    /**
     * Refuses to go on if the names of file and log do not lead to what is open: what is stored would be lost with the last descriptor, and another process could
     * make a pool of the same name.
     */
    public void requireNames() {
        requireName(path, fileKey);
        if (log != null) {
            requireName(Path.of(logOf(path.toString())), logKey);
        }
    }

    private void requireName(Path of, Object key) {
        Object now;
        try {
            now = key(of);
        } catch (IOException e) {
            now = null;
        }
        if (!key.equals(now)) {
            throw new PoolException(Reason.IO, of + (now == null ? " was moved or removed" : " was replaced by another file") + " while " + name
                + " is open: what is stored goes to the file that had this name; put that file back, or end the program and restore a copy");
        }
    }

    /** Device and number of a file. */
    private static Object key(Path of) throws IOException {
        return Files.readAttributes(of, java.nio.file.attribute.BasicFileAttributes.class).fileKey();
    }


    private void unmap() {
        if (privately != -1) {
            SystemCalls.unmap(privately, superblock.capacity);
            privately = -1;
        }
    }

    /** Makes the names of new files durable. */
    private void forceNames() throws IOException {
        try (FileChannel directory = uninterruptible(FileChannel.open(path.getParent(), StandardOpenOption.READ))) {
            directory.force(true);
        }
    }

    private static void close(java.io.Closeable f) {
        try {
            if (f != null) {
                f.close();
            }
        } catch (IOException e) {
            // the first failure is the one to tell
        }
    }

    /** A thread that is interrupted would close the channel, and with it give up the lock: interrupts are for the program. */
    private static FileChannel uninterruptible(FileChannel c) {
        if (c instanceof sun.nio.ch.FileChannelImpl) {
            ((sun.nio.ch.FileChannelImpl) c).setUninterruptible();
        }
        return c;
    }

    private static long defaultCapacity() {
        return Math.max(1L << 30, 4 * Runtime.getRuntime().maxMemory()) + (1 << 20) - 1 & -(1 << 20);
    }

    private static long roundUp(long capacity) {
        return capacity + Layout.SEGMENT - 1 & -Layout.SEGMENT;
    }

    private void make(Disk data, long capacity, Durability durability) throws IOException {
        Superblock s = superblock;
        ByteBuffer random = ByteBuffer.wrap(randomBytes());
        s.uuidHigh = random.getLong() & 0xffffffffffff0fffL | 0x4000L;
        s.uuidLow = random.getLong() & 0x3fffffffffffffffL | 0x8000000000000000L;
        s.seq = 0;
        s.capacity = capacity == 0 ? defaultCapacity() : roundUp(capacity);
        s.created = System.currentTimeMillis() / 1000;
        s.durability = durability;
        s.clean = false;
        // What an interrupted creation left goes; the file shows nothing until the last write.
        channel.truncate(0);
        if (durability == Durability.PROCESS) {
            Room.writeInPlace(channel);
        }
        Room.fill(channel, 0, Layout.HEAP);
        s.write(data);
        ByteBuffer words = ByteBuffer.allocate(80).order(java.nio.ByteOrder.LITTLE_ENDIAN);
        words.putLong(0, Layout.HEAP);
        for (long word : new long[] {Layout.MARK_NUMBER, Layout.CYCLE, Layout.CLASSES, Layout.ROOTS, Layout.UNDO, Layout.REHASH, Layout.SECTIONS}) {
            words.putLong((int) (word - Layout.FRONTIER), 1);
        }
        channel.write(words, Layout.FRONTIER);
        channel.force(true);
        s.ready = true;
        // It needs no log: Opening goes on from here as it does with any pool that was closed.
        s.clean = true;
        s.write(data);
    }

    private static long randomStamp() {
        return ByteBuffer.wrap(randomBytes()).getLong() | 1;
    }

    /** Of the kernel's, without the JDK's security providers: loading those takes longer than all else that opening does. */
    private static byte[] randomBytes() {
        byte[] bytes = new byte[16];
        try (java.io.FileInputStream in = new java.io.FileInputStream("/dev/urandom")) {
            if (in.readNBytes(bytes, 0, 16) == 16) {
                return bytes;
            }
        } catch (IOException e) {
            // a place without devices
        }
        new SecureRandom().nextBytes(bytes);
        return bytes;
    }

    private void map(Durability durability) throws IOException {
        if (durability == Durability.POWER) {
            file.setLength(Math.max(file.length(), superblock.capacity + 8));
            privately = SystemCalls.mapPrivately(descriptor(), superblock.capacity);
            if (privately == -1) {
                throw new PoolException(Reason.IO, name + ": the kernel will not map " + superblock.capacity
                    + " bytes copy on write; give a smaller capacity, or allow overcommitment of memory");
            }
            Nvm.attach(privately, Nvm.PRIVATE, dirty);
            return;
        }
        try {
            MemorySegment durable = channel.map(jdk.nio.mapmode.ExtendedMapMode.READ_WRITE_SYNC, 0, superblock.capacity, arena);
            String cannot = WriteBack.unavailable();
            if (cannot != null) {
                throw new PoolException(Reason.NO_AGENT, name + " lies in DAX memory, and " + cannot + "; start it without -Xint and -XX:TieredStopAtLevel, or open the"
                    + " pool with Durability.POWER");
            }
            attach(durable, Nvm.DAX);
        } catch (IOException | UnsupportedOperationException e) {
            // Not a DAX mapping: the page cache keeps what a killed process stored.
            attach(mapShared(), Nvm.SHARED);
        } catch (NoClassDefFoundError e) {
            // What is DAX cannot be told from what is not, and must not pass for less than it is.
            throw new PoolException(Reason.NO_AGENT, "this Java runtime lacks the module jdk.nio.mapmode, which maps durable memory; add it: jlink --add-modules"
                + " jdk.nio.mapmode, or java --add-modules jdk.nio.mapmode", e);
        }
    }

    private MemorySegment mapShared() throws IOException {
        try {
            return channel.map(FileChannel.MapMode.READ_WRITE, 0, superblock.capacity, arena);
        } catch (IOException e) {
            throw new IOException("a file of its capacity, " + superblock.capacity + " bytes, cannot be mapped here (" + e.getMessage()
                + "); give a smaller capacity, or raise the limits of this process", e);
        }
    }

    private void attach(MemorySegment segment, int medium) {
        Nvm.attach(segment.address(), medium, dirty);
    }

    /**
     * Moves the durable frontier to {@code wanted}, or at least to {@code least}; what a store below it needs of the file system is there
     * first.
     *
     * @return the new frontier
     */
    long advance(long least, long wanted) {
        long end = Math.min(wanted, superblock.capacity);
        if (least > end) {
            throw Allocator.full(name, superblock.capacity, least);
        }
        if (end > Nvm.getLong(Layout.FRONTIER)) {
            requireNames();
            room.reach(end);
        }
        Nvm.putLongDurably(Layout.FRONTIER, end);
        return end;
    }

    private int descriptor() throws IOException {
        return SharedSecrets.getJavaIOFileDescriptorAccess().get(file.getFD());
    }

    public String name() {
        return name;
    }

    /** Where the file is, links followed. */
    public Path path() {
        return path;
    }

    public boolean fresh() {
        return fresh;
    }

    public Superblock superblock() {
        return superblock;
    }

    public FileChannel channel() {
        return channel;
    }

    /** The log of this opening; null if the pool is not committed to. */
    RedoLog log() {
        return redo;
    }

    public DirtyPages dirty() {
        return dirty;
    }

    /** Writes to the disk what the kernel still holds. */
    public void force() {
        try {
            requireNames();
            if (unsynced) {
                throw new IOException("an earlier sync failed, after which the kernel holds what the disk never got; close the pool, and open it with"
                    + " Durability.POWER, which writes all of it again");
            }
            unsynced = true;
            channel.force(false);
            unsynced = false;
        } catch (IOException e) {
            throw new PoolException(Reason.IO, name + ": " + e.getMessage(), e);
        }
    }

    /** Unmaps, notes the clean end, and lets others open the file. The last commit, if there are any, is in the file. */
    @Override
    public void close() {
        end(true);
    }

    /** As {@link #close} after an opening that came to nothing: the pool is as the next opening may find it, and clean only if it was and no commit was begun: one that failed may be whole on the device. */
    public void abandon() {
        end(wasClean && (redo == null ? Nvm.getLong(Layout.UNDO) == Layout.NONE : redo.untouched()));
    }

    /**
     * The superblock says "clean" and is synced, then the log goes. Stopping between: its commit is the one that the file is at, so it is let be.
     */
    private void end(boolean clean) {
        try {
            Nvm.detach();
            unmap();
            arena.close();
            if (clean) {
                superblock.clean = true;
                superblock.write(new Disk.Channel(channel));
            }
            requireNames();
            if (log != null) {
                log.close();
                if (clean) {
                    Files.deleteIfExists(Path.of(logOf(path.toString())));
                }
            }
        } catch (IOException e) {
            throw new PoolException(Reason.IO, name + ": " + e.getMessage(), e);
        } finally {
            close(log);
            close(file);
        }
    }
}
