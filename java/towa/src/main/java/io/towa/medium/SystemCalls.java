package io.towa.medium;

import java.lang.foreign.FunctionDescriptor;
import java.lang.foreign.Linker;
import java.lang.foreign.ValueLayout;
import java.lang.invoke.MethodHandle;
import java.nio.channels.FileChannel;
import jdk.internal.access.SharedSecrets;

/**
 * The system calls that the JDK has no name for: {@code membarrier}, {@code fallocate}, {@code posix_fadvise}, {@code lseek} to a file's holes, {@code mmap} without
 * a reservation of memory, {@code fstatfs}, requests to file systems ({@code ioctl}), and locks that belong to the open file.
 *
 * <p>membarrier(PRIVATE_EXPEDITED): every other thread of the process executes a full fence somewhere between its begin and its end. So
 * a writer that stores, then looks at a mark, needs no fence of its own; who sets the mark calls it. Without it (a kernel before 4.14, or
 * a filter that forbids it) {@link #processWideFence} says false, and writers must fence: see {@code io.towa.barrier.Barrier}.
 */
public final class SystemCalls {
    private static final long REGISTER = 16;
    private static final long EXPEDITED = 8;
    private static final long READ_WRITE = 3;
    private static final jdk.internal.misc.Unsafe U = jdk.internal.misc.Unsafe.getUnsafe();

    /** For calls that end at once: the thread does not leave Java for them. */
    private static final MethodHandle SHORT;
    private static final MethodHandle LONG;
    private static final MethodHandle SIX;
    private static final long MEMBARRIER;
    private static final long MMAP;
    private static final long MUNMAP;
    private static final long FSTATFS;
    private static final long FALLOCATE;
    private static final long IOCTL;
    private static final long FADVISE;
    private static final long LSEEK;
    private static final long FCNTL;
    private static final long GETPID;
    private static final long GETEUID;
    private static final boolean FENCES;

    static {
        SharedSecrets.getJavaLangAccess().addEnableNativeAccessToAllUnnamed();
        boolean x86 = System.getProperty("os.arch").equals("amd64");
        MEMBARRIER = x86 ? 324 : 283;
        FALLOCATE = x86 ? 285 : 47;
        FADVISE = x86 ? 221 : 223;
        ValueLayout.OfLong word = ValueLayout.JAVA_LONG;
        Linker linker = Linker.nativeLinker();
        FunctionDescriptor type = FunctionDescriptor.of(word, word, word, word, word, word);
        SHORT = linker.downcallHandle(linker.defaultLookup().find("syscall").get(), type, Linker.Option.critical(false));
        LONG = linker.downcallHandle(linker.defaultLookup().find("syscall").get(), type);
        FunctionDescriptor seven = FunctionDescriptor.of(word, word, word, word, word, word, word, word);
        SIX = linker.downcallHandle(linker.defaultLookup().find("syscall").get(), seven);
        MMAP = x86 ? 9 : 222;
        MUNMAP = x86 ? 11 : 215;
        FSTATFS = x86 ? 138 : 44;
        IOCTL = x86 ? 16 : 29;
        LSEEK = x86 ? 8 : 62;
        FCNTL = x86 ? 72 : 25;
        GETPID = x86 ? 39 : 172;
        GETEUID = x86 ? 107 : 175;
        FENCES = call(SHORT, MEMBARRIER, REGISTER, 0, 0, 0) == 0;
    }

    private SystemCalls() {}

    private static long call(MethodHandle how, long number, long a, long b, long c, long d) {
        try {
            return (long) how.invokeExact(number, a, b, c, d);
        } catch (Error e) {
            // The end of the stack is the program's to see.
            throw e;
        } catch (Throwable e) {
            throw new LinkageError("syscall", e);
        }
    }

    /** Calls of six arguments, and those that may wait. @return -1: the kernel refuses */
    static long call(long number, long a, long b, long c, long d, long e, long f) {
        try {
            return (long) SIX.invokeExact(number, a, b, c, d, e, f);
        } catch (Error error) {
            // The end of the stack is the program's to see.
            throw error;
        } catch (Throwable error) {
            throw new LinkageError("syscall", error);
        }
    }

    /** Whether {@link #fenceEveryThread} works here. */
    public static boolean processWideFence() {
        return FENCES;
    }

    public static void fenceEveryThread() {
        if (FENCES && call(SHORT, MEMBARRIER, EXPEDITED, 0, 0, 0) != 0) {
            throw new IllegalStateException("membarrier stopped working");
        }
    }

    /**
     * Maps a file copy on write; memory is taken as pages are stored to, not before: the mapping may be greater than the machine's.
     *
     * @return the address; -1: the kernel will not
     */
    public static long mapPrivately(int descriptor, long bytes) {
        long privateWithoutReserve = 0x4002;
        return call(MMAP, 0, bytes, READ_WRITE, privateWithoutReserve, descriptor, 0);
    }

    /**
     * Memory outside the heap, all of it there when this returns: what is stored to it afterwards takes no page fault.
     *
     * @return the address; -1: the kernel has none
     */
    public static long mapMemory(long bytes) {
        long privateAnonymousPopulated = 0x8022;
        return call(MMAP, 0, bytes, READ_WRITE, privateAnonymousPopulated, -1, 0);
    }

    public static void unmap(long address, long bytes) {
        call(LONG, MUNMAP, address, bytes, 0, 0);
    }

    /** Allocates the file's blocks in this range; false if the file system has no room or cannot. */
    public static boolean allocate(int descriptor, long from, long bytes) {
        return call(LONG, FALLOCATE, descriptor, 0, from, bytes) == 0;
    }

    /** Gives back the blocks of this range, which reads as zeros afterwards. A file system that cannot does nothing. */
    public static void punch(int descriptor, long from, long bytes) {
        long punchAndKeepSize = 3;
        call(LONG, FALLOCATE, descriptor, punchAndKeepSize, from, bytes);
    }

    /** Whether the file is in a memory file system (tmpfs, ramfs). */
    public static boolean isMemory(int descriptor) {
        // struct statfs has 120 bytes; its first word is the type.
        long about = U.allocateMemory(256);
        try {
            long type = call(LONG, FSTATFS, descriptor, about, 0, 0) == 0 ? U.getLong(about) : 0;
            return type == 0x01021994L || type == 0x858458f6L;
        } finally {
            U.freeMemory(about);
        }
    }

    /**
     * Has a file system that writes to new blocks each time write this file in place; the file must be empty. A file system that does not
     * know the wish does nothing.
     */
    public static void writeInPlace(int descriptor) {
        long getFlags = 0x80086601L;
        long setFlags = 0x40086602L;
        int noCopyOnWrite = 0x800000;
        long flags = U.allocateMemory(8);
        try {
            U.putLong(flags, 0);
            if (call(LONG, IOCTL, descriptor, getFlags, flags, 0) == 0) {
                U.putInt(flags, U.getInt(flags) | noCopyOnWrite);
                call(LONG, IOCTL, descriptor, setFlags, flags, 0);
            }
        } finally {
            U.freeMemory(flags);
        }
    }

    /**
     * The next bytes of the range whose blocks another file has as well.
     *
     * @return begin and end; null: there are none, or the file system does not say
     */
    public static long[] shared(int descriptor, long from, long to) {
        long fiemap = 0xc020660bL;
        int shared = 0x2000;
        int most = 64;
        // struct fiemap: u64 start, length; u32 flags, extents found, extents that there is room for, 0; the extents, of 56 bytes each
        // struct fiemap_extent: u64 place, place on the device, length, 0, 0; u32 flags, 0, 0, 0
        long map = U.allocateMemory(32 + 56 * most);
        try {
            for (long at = from; at < to;) {
                U.setMemory(map, 32, (byte) 0);
                U.putLong(map, at);
                U.putLong(map + 8, to - at);
                U.putInt(map + 24, most);
                if (call(LONG, IOCTL, descriptor, fiemap, map, 0) != 0 || U.getInt(map + 20) == 0) {
                    return null;
                }
                for (int i = 0; i < U.getInt(map + 20); i++) {
                    long extent = map + 32 + 56L * i;
                    long begin = Math.max(at, U.getLong(extent));
                    at = U.getLong(extent) + U.getLong(extent + 16);
                    if ((U.getInt(extent + 40) & shared) != 0 && begin < to) {
                        return new long[] {begin, at};
                    }
                }
            }
            return null;
        } finally {
            U.freeMemory(map);
        }
    }

    /**
     * Has the kernel drop the pages of this range that it holds clean and that no process maps. Where it does not take the advice (memory file systems), nothing
     * happens.
     *
     * @param bytes 0: to the end
     */
    public static void dropCleanPages(FileChannel file, long from, long bytes) {
        int descriptor = descriptor(file);
        if (descriptor >= 0) {
            long notNeeded = 4;
            call(LONG, FADVISE, descriptor, from, bytes, notNeeded);
        }
    }

    /** A channel's descriptor; -1: it is no channel of the JDK's own file system. */
    public static int descriptor(FileChannel file) {
        if (!(file instanceof sun.nio.ch.FileChannelImpl)) {
            return -1;
        }
        // The JDK has no accessor for it.
        long field = U.objectFieldOffset(sun.nio.ch.FileChannelImpl.class, "fd");
        return SharedSecrets.getJavaIOFileDescriptorAccess().get((java.io.FileDescriptor) U.getReference(file, field));
    }

    /** Where at or after {@code from} the file's next hole begins, bytes that have no block; -1: nowhere, or the file system does not say. Moves the file's position. */
    public static long hole(int descriptor, long from) {
        return call(LONG, LSEEK, descriptor, from, 4, 0);
    }

    /** As {@link #hole}, where there is data. */
    public static long data(int descriptor, long from) {
        return call(LONG, LSEEK, descriptor, from, 3, 0);
    }

    /** The user that this process acts as. */
    public static int user() {
        return (int) call(LONG, GETEUID, 0, 0, 0, 0);
    }

    /** This process, as it knows itself. */
    public static int process() {
        return (int) call(LONG, GETPID, 0, 0, 0, 0);
    }

    /**
     * Locks all of a file against every other open file, of this process too (F_OFD_SETLK). The lock ends when the last descriptor of this open file is closed: closing
     * another one of the same file leaves it, which ends a lock of {@code FileChannel}.
     *
     * @return false: another has a lock, or there are none here ({@link #isLocked})
     */
    public static boolean lock(int descriptor) {
        return lock(37, descriptor) != null;
    }

    /** Whether another open file has a lock of any part of the file. */
    public static boolean isLocked(int descriptor) {
        Short type = lock(36, descriptor);
        return type != null && type != 2;
    }

    /** @return the type of lock that the kernel answers with (2: none); null: it refuses */
    private static Short lock(long command, int descriptor) {
        // struct flock: type u16 (1: for writing), whence u16, start, length (0: to the end) and process
        long lock = U.allocateMemory(32);
        try {
            U.setMemory(lock, 32, (byte) 0);
            U.putShort(lock, (short) 1);
            return call(LONG, FCNTL, descriptor, command, lock, 0) == 0 ? (Short) U.getShort(lock) : null;
        } finally {
            U.freeMemory(lock);
        }
    }
}
