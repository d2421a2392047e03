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
import java.nio.channels.FileLock;
import java.nio.channels.OverlappingFileLockException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.nio.file.attribute.PosixFilePermissions;
import java.security.SecureRandom;
import jdk.internal.access.SharedSecrets;

/**
 * The pool's file: made or opened, locked against a second owner, mapped whole.
 *
 * <p>Creation: superblock "being made", words, sync, superblock "ready". A crash before the last leaves a file that holds nothing, and the
 * next opening makes it anew. What must always hold: no byte below the frontier lacks its block on the disk, so that no store can fail.
 */
public final class PoolFile implements AutoCloseable {
    private static final int ALLOCATE_STEP = 16 << 20;

    private final String name;
    private final RandomAccessFile file;
    private final FileChannel channel;
    private final FileLock lock;
    private final Superblock superblock;
    private final Arena arena;
    private final boolean fresh;
    private final DirtyPages dirty;
    /** NAME.log, if the pool is committed to; else null. */
    private FileChannel log;
    /** Address of a mapping that is not the arena's; -1: there is none. */
    private long privately = -1;
    private long allocatedTo;

    /**
     * Opens or makes the pool at {@code path}, and attaches {@link Nvm} to it.
     *
     * @param capacity the most bytes that the file may get; 0: what it has, or 4 times the JVM's largest heap
     */
    public PoolFile(Path path, long capacity, Durability durability) {
        name = path.toString();
        RandomAccessFile opened = null;
        try {
            boolean exists = Files.exists(path);
            if (!exists) {
                Files.newByteChannel(path, java.util.Set.of(StandardOpenOption.CREATE_NEW, StandardOpenOption.WRITE),
                    PosixFilePermissions.asFileAttribute(PosixFilePermissions.fromString("rw-------"))).close();
            } else if (!Files.isRegularFile(path)) {
                throw new PoolException(Reason.FOREIGN, name + ": not a file; a pool of the Java door is one file");
            }
            opened = new RandomAccessFile(path.toFile(), "rw");
            file = opened;
            channel = uninterruptible(file.getChannel());
            lock = lock(channel, name);
            boolean empty = channel.size() == 0;
            Superblock found = empty ? null : Superblock.read(channel, name);
            fresh = found == null || !found.ready;
            log = redo(path, fresh ? null : found, durability);
            superblock = fresh ? make(capacity, durability) : found;
            if (!fresh) {
                adjust(capacity, durability);
            }
            if (log != null) {
                forceNames(path);
            }
            arena = Arena.ofShared();
            dirty = durability == Durability.POWER ? new DirtyPages(superblock.capacity) : null;
            map(durability);
            long frontier = Nvm.getLong(Layout.FRONTIER);
            if (frontier < Layout.HEAP || frontier > superblock.capacity || frontier % Layout.SEGMENT != 0) {
                throw new PoolException(Reason.DAMAGED, name + ": frontier " + frontier + " is outside the file; restore it from a copy");
            }
            fillHoles(frontier);
            allocatedTo = frontier;
        } catch (IOException e) {
            close(log);
            close(opened);
            throw new PoolException(Reason.IO, name + ": " + e.getMessage() + " (" + e.getClass().getSimpleName() + ")", e);
        } catch (RuntimeException | Error e) {
            Nvm.detach();
            unmap();
            close(log);
            close(opened);
            throw e;
        }
    }

    /**
     * Before the pool is looked at: what a crash left of a commit is brought to it. Afterwards the log is invalid, durably.
     *
     * @param pool null: a new one
     * @return the log, open, if the pool is going to be committed to; else null
     */
    private FileChannel redo(Path path, Superblock pool, Durability durability) throws IOException {
        Path beside = logOf(path);
        boolean power = durability == Durability.POWER;
        if (!power && !Files.exists(beside)) {
            return null;
        }
        FileChannel c = uninterruptible(power
            ? FileChannel.open(beside, java.util.Set.of(StandardOpenOption.CREATE, StandardOpenOption.READ, StandardOpenOption.WRITE),
                PosixFilePermissions.asFileAttribute(PosixFilePermissions.fromString("rw-------")))
            : FileChannel.open(beside, StandardOpenOption.READ, StandardOpenOption.WRITE));
        boolean keep = false;
        try {
            RedoLog redo = new RedoLog(new Disk.Channel(c), pool == null ? 0 : pool.uuidHigh, pool == null ? 0 : pool.uuidLow);
            switch (redo.state().ordinal()) {
                case 1: // FOREIGN
                    if (power) {
                        throw new PoolException(Reason.FOREIGN, beside + ": in the way: the log of " + name
                            + " is to be there, and this is no log; move it, or give the pool another name");
                    }
                    return null;
                case 2: // OTHERS
                    throw new PoolException(Reason.FOREIGN, beside + ": holds a commit of another pool than " + name
                        + "; bring that pool's file back, or move the log away if what it holds is not wanted");
                case 3: // OURS
                    redo.apply(new Disk.Channel(channel));
                    break;
                default:
                    if (!power && !redo.named()) {
                        // Applied, perhaps not durably invalid yet; or no log at all: its content is left alone.
                        redo.force();
                        return null;
                    }
            }
            redo.invalidate(0);
            redo.force();
            keep = power;
            return power ? c : null;
        } finally {
            if (!keep) {
                c.close();
            }
        }
    }

    private void unmap() {
        if (privately != -1) {
            SystemCalls.unmap(privately, superblock.capacity);
            privately = -1;
        }
    }

    static Path logOf(Path pool) {
        return Path.of(pool + ".log");
    }

    /** Makes the names of new files durable. */
    private static void forceNames(Path path) throws IOException {
        try (FileChannel directory = uninterruptible(FileChannel.open(path.toAbsolutePath().getParent(), StandardOpenOption.READ))) {
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

    private static FileLock lock(FileChannel channel, String name) throws IOException {
        try {
            FileLock lock = channel.tryLock();
            if (lock != null) {
                return lock;
            }
        } catch (OverlappingFileLockException e) {
            throw new PoolException(Reason.BUSY, name + ": this process has it open already");
        }
        throw new PoolException(Reason.BUSY, name + ": another process has it open; end that one, or use another file");
    }

    private static long defaultCapacity() {
        return Math.max(1L << 30, 4 * Runtime.getRuntime().maxMemory()) + (1 << 20) - 1 & -(1 << 20);
    }

    private Superblock make(long capacity, Durability durability) throws IOException {
        Superblock s = new Superblock();
        ByteBuffer random = ByteBuffer.wrap(randomBytes());
        s.uuidHigh = random.getLong() & 0xffffffffffff0fffL | 0x4000L;
        s.uuidLow = random.getLong() & 0x3fffffffffffffffL | 0x8000000000000000L;
        s.capacity = capacity == 0 ? defaultCapacity() : capacity + Layout.SEGMENT - 1 & -Layout.SEGMENT;
        s.created = System.currentTimeMillis() / 1000;
        s.durability = durability;
        // What an interrupted creation left goes; the file shows nothing until the last write.
        channel.truncate(0);
        fill(0, Layout.HEAP);
        s.write(channel);
        ByteBuffer words = ByteBuffer.allocate(48).order(java.nio.ByteOrder.LITTLE_ENDIAN);
        words.putLong(0, Layout.HEAP).putLong(8, 1).putLong(16, 1);
        channel.write(words, Layout.FRONTIER);
        channel.force(true);
        s.ready = true;
        s.write(channel);
        return s;
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

    private void adjust(long capacity, Durability durability) throws IOException {
        long size = channel.size();
        if (size < Layout.HEAP) {
            throw new PoolException(Reason.DAMAGED, name + ": cut to " + size + " bytes; restore it from a copy");
        }
        ByteBuffer frontier = ByteBuffer.allocate(8).order(java.nio.ByteOrder.LITTLE_ENDIAN);
        channel.read(frontier, Layout.FRONTIER);
        if (frontier.getLong(0) > size) {
            throw new PoolException(Reason.DAMAGED, name + ": cut to " + size + " bytes, of which it used " + frontier.getLong(0)
                + "; restore it from a copy");
        }
        superblock.capacity = Math.max(superblock.capacity, capacity + Layout.SEGMENT - 1 & -Layout.SEGMENT);
        superblock.clean = false;
        superblock.durability = durability;
        superblock.write(channel);
    }

    private void map(Durability durability) throws IOException {
        if (durability == Durability.POWER) {
            file.setLength(Math.max(file.length(), superblock.capacity));
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
            attach(channel.map(FileChannel.MapMode.READ_WRITE, 0, superblock.capacity, arena), Nvm.SHARED);
        } catch (NoClassDefFoundError e) {
            // What is DAX cannot be told from what is not, and must not pass for less than it is.
            throw new PoolException(Reason.NO_AGENT, "this Java runtime lacks the module jdk.nio.mapmode, which maps durable memory; add it: jlink --add-modules"
                + " jdk.nio.mapmode, or java --add-modules jdk.nio.mapmode", e);
        }
    }

    private void attach(MemorySegment segment, int medium) {
        Nvm.attach(segment.address(), medium, dirty);
    }

    /**
     * Moves the durable frontier to {@code wanted}, or at least to {@code least}; the blocks up to it are allocated first.
     *
     * @return the new frontier
     */
    long advance(long least, long wanted) {
        long end = Math.min(wanted, superblock.capacity);
        if (least > end) {
            throw Allocator.full(name, superblock.capacity, least);
        }
        if (end > allocatedTo) {
            long to = Math.min(superblock.capacity, Math.max(end, allocatedTo + ALLOCATE_STEP));
            if (!reserve(allocatedTo, to) && !reserve(allocatedTo, end)) {
                throw new PoolException(Reason.FULL, name + ": the file system has no room for " + (end - allocatedTo)
                    + " bytes more; make room and store again");
            }
        }
        Nvm.putLongDurably(Layout.FRONTIER, end);
        return end;
    }

    private int descriptor() throws IOException {
        return SharedSecrets.getJavaIOFileDescriptorAccess().get(file.getFD());
    }

    private boolean reserve(long from, long to) {
        int fd;
        try {
            fd = descriptor();
        } catch (IOException e) {
            return false;
        }
        if (!SystemCalls.allocate(fd, from, to - from)) {
            // A file system without fallocate, or a full one: writing says which.
            try {
                fill(from, to);
            } catch (IOException e) {
                return false;
            }
        }
        allocatedTo = to;
        return true;
    }

    /**
     * A copy may have come without the blocks of its zeros ({@code cp --sparse}): a store there would need one, and could not say that there is none. (Blocks that
     * are allocated and were never written look like holes, too; to allocate them again costs next to nothing.)
     */
    private void fillHoles(long frontier) throws IOException {
        int fd = descriptor();
        long hole = SystemCalls.hole(fd, 0);
        if (hole < 0 || hole >= frontier || SystemCalls.allocate(fd, hole, frontier - hole)) {
            return;
        }
        try {
            while (hole >= 0 && hole < frontier) {
                long data = SystemCalls.data(fd, hole);
                long end = data < 0 ? frontier : Math.min(frontier, data);
                fill(hole, end);
                hole = SystemCalls.hole(fd, end);
            }
        } catch (IOException e) {
            throw new PoolException(Reason.FULL, name + ": the file has holes (a sparse copy?) and the file system has no room for them (" + e.getMessage()
                + "); make room, or open it elsewhere", e);
        }
    }

    private void fill(long from, long to) throws IOException {
        ByteBuffer zeros = ByteBuffer.allocateDirect(1 << 16);
        for (long at = from; at < to;) {
            zeros.clear().limit((int) Math.min(zeros.capacity(), to - at));
            at += channel.write(zeros, at);
        }
    }

    public String name() {
        return name;
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

    Disk log() {
        return new Disk.Channel(log);
    }

    public DirtyPages dirty() {
        return dirty;
    }

    /** Writes to the disk what the kernel still holds. */
    public void force() {
        try {
            channel.force(false);
        } catch (IOException e) {
            throw new PoolException(Reason.IO, name + ": " + e.getMessage(), e);
        }
    }

    /** Unmaps, notes the clean end, and lets others open the file. */
    @Override
    public void close() {
        try {
            Nvm.detach();
            unmap();
            arena.close();
            superblock.clean = true;
            superblock.write(channel);
            if (log != null) {
                boolean applied = log.size() == 0;
                log.close();
                if (applied) {
                    Files.deleteIfExists(logOf(Path.of(name)));
                }
            }
            lock.release();
        } catch (IOException e) {
            throw new PoolException(Reason.IO, name + ": " + e.getMessage(), e);
        } finally {
            close(file);
        }
    }
}
