package io.towa.medium;

import java.nio.charset.Charset;
import jdk.internal.misc.Unsafe;

/**
 * Sockets that have a name in a directory, by system calls. The JDK's own would load and weave classes at each opening of a pool, cannot be
 * waited for with a limit without a selector, and have for a moment the mode that the process' umask gives.
 *
 * <p>What must always hold: no call but {@link #awaitConnection} waits longer than it is told to; no descriptor is inherited by programs that this one starts.
 */
public final class LocalSocket {
    private static final Unsafe U = Unsafe.getUnsafe();
    private static final boolean X86 = System.getProperty("os.arch").equals("amd64");
    private static final long SOCKET = X86 ? 41 : 198;
    private static final long BIND = X86 ? 49 : 200;
    private static final long LISTEN = X86 ? 50 : 201;
    private static final long ACCEPT = X86 ? 288 : 242;
    private static final long SENDTO = X86 ? 44 : 206;
    private static final long RECVFROM = X86 ? 45 : 207;
    private static final long SHUTDOWN = X86 ? 48 : 210;
    private static final long CLOSE = X86 ? 3 : 57;
    private static final long FCHMOD = X86 ? 91 : 52;
    private static final long PPOLL = X86 ? 271 : 73;

    private static final long LOCAL = 1;
    private static final long STREAM_CLOSED_ON_EXEC = 0x80001;
    private static final long CLOSED_ON_EXEC = 0x80000;
    private static final long OWNER_ONLY = 0600;
    private static final long WAITING = 8;
    private static final long BOTH_WAYS = 2;
    /** MSG_DONTWAIT and MSG_NOSIGNAL. */
    private static final long AT_ONCE = 0x4040;
    private static final int TO_READ = 1;
    private static final int TO_WRITE = 4;
    /** POLLERR, POLLHUP and POLLNVAL. */
    private static final int GONE = 0x38;
    /** struct sockaddr_un: u16 family, 108 bytes of path. */
    private static final int ADDRESS = 110;
    private static final int LONGEST_PATH = 107;

    private LocalSocket() {}

    /**
     * Makes a socket with this name, for this user alone, and listens. The mode is set before the socket has its name, and a name gets it with its making.
     *
     * @return the descriptor; -1: it cannot be made, or the name is taken
     */
    public static int listen(String path) {
        byte[] name = path.getBytes(Charset.forName(System.getProperty("sun.jnu.encoding", "UTF-8")));
        int fd = name.length > LONGEST_PATH ? -1 : (int) SystemCalls.call(SOCKET, LOCAL, STREAM_CLOSED_ON_EXEC, 0, 0, 0, 0);
        if (fd < 0) {
            return -1;
        }
        long address = U.allocateMemory(ADDRESS);
        try {
            U.setMemory(address, ADDRESS, (byte) 0);
            U.putShort(address, (short) LOCAL);
            for (int i = 0; i < name.length; i++) {
                U.putByte(address + 2 + i, name[i]);
            }
            if (SystemCalls.call(FCHMOD, fd, OWNER_ONLY, 0, 0, 0, 0) == 0 && SystemCalls.call(BIND, fd, address, ADDRESS, 0, 0, 0) == 0
                && SystemCalls.call(LISTEN, fd, WAITING, 0, 0, 0, 0) == 0) {
                return fd;
            }
        } finally {
            U.freeMemory(address);
        }
        close(fd);
        return -1;
    }

    /** Waits for a connection, however long. @return its descriptor; -1: none, or {@link #shutDown} */
    public static int awaitConnection(int listening) {
        return (int) SystemCalls.call(ACCEPT, listening, 0, 0, CLOSED_ON_EXEC, 0, 0);
    }

    /** Who waits for the socket, or is going to, goes on. */
    public static void shutDown(int fd) {
        SystemCalls.call(SHUTDOWN, fd, BOTH_WAYS, 0, 0, 0, 0);
    }

    public static void close(int fd) {
        SystemCalls.call(CLOSE, fd, 0, 0, 0, 0, 0);
    }

    /** Receives at most so many bytes, if there are any. @return how many; 0: none yet; -1: the other side has gone */
    public static int receive(int fd, long to, int bytes, long waitMillis) {
        int state = poll(fd, TO_READ, waitMillis);
        if ((state & TO_READ) == 0) {
            return (state & GONE) == 0 ? 0 : -1;
        }
        int n = (int) SystemCalls.call(RECVFROM, fd, to, bytes, AT_ONCE, 0, 0);
        return n > 0 ? n : -1;
    }

    /** Sends as many of these bytes as there is room for. @return how many; 0: none yet; -1: the other side has gone */
    public static int send(int fd, long from, int bytes, long waitMillis) {
        int state = poll(fd, TO_WRITE, waitMillis);
        if ((state & GONE) != 0) {
            return -1;
        }
        if ((state & TO_WRITE) == 0) {
            return 0;
        }
        int n = (int) SystemCalls.call(SENDTO, fd, from, bytes, AT_ONCE, 0, 0);
        // It may have filled up since; if the other side has gone, the next look says so.
        return Math.max(0, n);
    }

    /** @return what the descriptor is ready for; 0: nothing within that time, or a signal came */
    private static int poll(int fd, int events, long waitMillis) {
        // struct pollfd: u32 descriptor, u16 events, u16 what came; struct timespec
        long memory = U.allocateMemory(24);
        try {
            U.putInt(memory, fd);
            U.putShort(memory + 4, (short) events);
            U.putShort(memory + 6, (short) 0);
            U.putLong(memory + 8, waitMillis / 1000);
            U.putLong(memory + 16, waitMillis % 1000 * 1_000_000);
            long ready = SystemCalls.call(PPOLL, memory, 1, memory + 8, 0, 8, 0);
            return ready > 0 ? U.getShort(memory + 6) : 0;
        } finally {
            U.freeMemory(memory);
        }
    }
}
