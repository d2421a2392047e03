package io.towa.medium;

import java.lang.foreign.FunctionDescriptor;
import java.lang.foreign.Linker;
import java.lang.foreign.ValueLayout;
import java.lang.invoke.MethodHandle;
import java.nio.channels.FileChannel;
import jdk.internal.access.SharedSecrets;

/**
 * The system calls that the JDK has no name for: {@code membarrier}, {@code fallocate}, {@code posix_fadvise}, {@code lseek} to a file's holes, {@code mmap} without
 * a reservation of memory, and locks that belong to the open file.
 *
 * <p>membarrier(PRIVATE_EXPEDITED): every other thread of the process executes a full fence somewhere between its begin and its end. So
 * a writer that stores, then looks at a mark, needs no fence of its own; who sets the mark calls it. Without it (a kernel before 4.14, or
 * a filter that forbids it) {@link #processWideFence} says false, and writers must fence: see {@code io.towa.barrier.Barrier}.
 */
public final class SystemCalls {
    private static final long REGISTER = 16;
    private static final long EXPEDITED = 8;
    private static final long READ_WRITE = 3;

    /** For calls that end at once: the thread does not leave Java for them. */
    private static final MethodHandle SHORT;
    private static final MethodHandle LONG;
    private static final MethodHandle SIX;
    private static final long MEMBARRIER;
    private static final long MMAP;
    private static final long MUNMAP;
    private static final long FALLOCATE;
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

    /** Allocates the file's blocks in this range, so that a store to them cannot fail; false if the file system has no room or cannot. */
    public static boolean allocate(int descriptor, long from, long bytes) {
        return call(LONG, FALLOCATE, descriptor, 0, from, bytes) == 0;
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
        jdk.internal.misc.Unsafe u = jdk.internal.misc.Unsafe.getUnsafe();
        long field = u.objectFieldOffset(sun.nio.ch.FileChannelImpl.class, "fd");
        return SharedSecrets.getJavaIOFileDescriptorAccess().get((java.io.FileDescriptor) u.getReference(file, field));
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
        jdk.internal.misc.Unsafe u = jdk.internal.misc.Unsafe.getUnsafe();
        // struct flock: type u16 (1: for writing), whence u16, start, length (0: to the end) and process
        long lock = u.allocateMemory(32);
        try {
            u.setMemory(lock, 32, (byte) 0);
            u.putShort(lock, (short) 1);
            return call(LONG, FCNTL, descriptor, command, lock, 0) == 0 ? (Short) u.getShort(lock) : null;
        } finally {
            u.freeMemory(lock);
        }
    }
}
