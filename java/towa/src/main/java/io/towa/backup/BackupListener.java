package io.towa.backup;

import io.towa.medium.LocalSocket;
import io.towa.medium.SystemCalls;
import io.towa.pool.Committer;
import io.towa.pool.PoolFile;
import io.towa.pool.Uninterruptibly;
import java.io.IOException;
import java.nio.channels.FileChannel;
import java.nio.file.Files;
import java.nio.file.LinkOption;
import java.nio.file.NoSuchFileException;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import jdk.internal.access.SharedSecrets;

/**
 * Listens for {@code towa backup} at {@code NAME.sock} beside the pool, while it is open.
 *
 * <pre>
 *   a socket of a name of its own made, mode 0600, and listened to | the name NAME.sock added | the first one removed | connections | removed
 * </pre>
 *
 * <p>The first name is a short one, below {@code /proc/self/fd}: a path to a socket has 107 bytes at most, and the pool's may be longer. Why stopping after each
 * step is safe: a name that is left is of a dead socket then, of this user's. The next opening of the pool, which has its lock, removes it, and until then
 * a backup finds the pool not open.
 *
 * <p>What must always hold: only who has the pool's lock touches these names, and replaces nothing but a socket of this user's. Whatever goes wrong here, the pool is
 * open: then there are no backups while it is, and {@code towa backup} says why.
 */
public final class BackupListener extends Thread {
    private static final int TYPE = 0170000;
    private static final int SOCKET = 0140000;
    /** Connections at a time, of which one makes a backup. */
    private static final int MOST = 8;
    /** Behind the last commit: it is no matter when. */
    private static final int HOOK_SLOT = 8;

    /** That of the open pool; null: there is none. */
    private static BackupListener running;
    private static boolean hooked;

    private final PoolFile pool;
    private final Committer committer;
    private final int listening;
    private final Path name;
    private final Object key;
    private final List<BackupSession> sessions = new ArrayList<>(MOST);
    private boolean stopped;

    private BackupListener(PoolFile pool, Committer committer, int listening, Path name) throws IOException {
        super("towa-backups");
        setDaemon(true);
        this.pool = pool;
        this.committer = committer;
        this.listening = listening;
        this.name = name;
        key = key(name);
    }

    /** Begins to listen; if it cannot, nothing happens. */
    public static synchronized void begin(PoolFile pool, Committer committer) {
        try {
            Path name = Path.of(pool.path() + ".sock");
            int listening = listen(pool.path(), name);
            if (listening >= 0) {
                start(pool, committer, listening, name);
            }
        } catch (IOException | RuntimeException | OutOfMemoryError e) {
            // As where the file system has no sockets.
        }
    }

    private static void start(PoolFile pool, Committer committer, int listening, Path name) throws IOException {
        BackupListener l = null;
        try {
            l = new BackupListener(pool, committer, listening, name);
            l.start();
            running = l;
            hook();
        } finally {
            if (running != l || l == null) {
                // No thread would take a connection.
                Files.deleteIfExists(name);
                LocalSocket.close(listening);
            }
        }
    }

    private static int listen(Path pool, Path name) throws IOException {
        if (!isFree(name)) {
            return -1;
        }
        try (FileChannel directory = FileChannel.open(pool.getParent(), StandardOpenOption.READ)) {
            String first = ".towa-" + Files.getAttribute(pool, "unix:ino") + ".sock";
            Path made = pool.resolveSibling(first);
            if (isFree(made)) {
                Files.deleteIfExists(made);
            }
            int listening = LocalSocket.listen("/proc/self/fd/" + SystemCalls.descriptor(directory) + "/" + first);
            if (listening < 0) {
                return -1;
            }
            try {
                Files.deleteIfExists(name);
                // Unlike a renaming this replaces nothing that got the name since.
                Files.createLink(name, made);
            } catch (IOException e) {
                LocalSocket.close(listening);
                throw e;
            } finally {
                Files.deleteIfExists(made);
            }
            return listening;
        }
    }

    /** Whether nothing has the name, or a socket of this user's that a process has left. */
    private static boolean isFree(Path name) throws IOException {
        try {
            Map<String, Object> status = Files.readAttributes(name, "unix:mode,uid", LinkOption.NOFOLLOW_LINKS);
            return ((int) status.get("mode") & TYPE) == SOCKET && (int) status.get("uid") == SystemCalls.user();
        } catch (NoSuchFileException e) {
            return true;
        }
    }

    private static Object key(Path of) throws IOException {
        return Files.readAttributes(of, java.nio.file.attribute.BasicFileAttributes.class, LinkOption.NOFOLLOW_LINKS).fileKey();
    }

    /** No backup is under way when this returns, and none begins. A tool that waits for one is told why it ends, and is not waited for. */
    public static synchronized void end() {
        BackupListener l = running;
        running = null;
        if (l == null) {
            return;
        }
        l.removeName();
        List<BackupSession> left;
        synchronized (l.sessions) {
            l.stopped = true;
            left = new ArrayList<>(l.sessions);
        }
        for (int i = 0; i < left.size(); i++) {
            left.get(i).end();
        }
        LocalSocket.shutDown(l.listening);
        Uninterruptibly.join(l);
        LocalSocket.close(l.listening);
        for (int i = 0; i < left.size(); i++) {
            Uninterruptibly.join(left.get(i));
        }
    }

    private void removeName() {
        try {
            if (key.equals(key(name))) {
                Files.deleteIfExists(name);
            }
        } catch (IOException e) {
            // It is gone, or stays; then the next opening replaces it.
        }
    }

    @Override
    public void run() {
        for (;;) {
            int connection = LocalSocket.awaitConnection(listening);
            synchronized (sessions) {
                if (stopped) {
                    if (connection >= 0) {
                        LocalSocket.close(connection);
                    }
                    return;
                }
            }
            if (connection >= 0) {
                serve(connection);
            } else {
                // No descriptors are left, or a connection was broken off: others may come.
                java.util.concurrent.locks.LockSupport.parkNanos(50_000_000);
            }
        }
    }

    private void serve(int connection) {
        try {
            BackupSession s = new BackupSession(this, pool, committer, connection);
            synchronized (sessions) {
                if (!stopped && sessions.size() < MOST) {
                    s.start();
                    // It leaves the list under this lock, so after this.
                    sessions.add(s);
                    return;
                }
            }
        } catch (OutOfMemoryError e) {
            // No room for a thread: as if there were too many.
        }
        LocalSocket.close(connection);
    }

    void ended(BackupSession s) {
        synchronized (sessions) {
            sessions.remove(s);
        }
    }

    /** A program that ends without closing its pool leaves no socket behind. */
    private static void hook() {
        if (hooked) {
            return;
        }
        hooked = true;
        try {
            SharedSecrets.getJavaLangAccess().registerShutdownHook(HOOK_SLOT, false, new Exit());
        } catch (InternalError | IllegalStateException e) {
            // The slot is taken, or the machine is on its way down: the socket stays, and the next opening replaces it.
        }
    }

    private static final class Exit implements Runnable {
        @Override
        public void run() {
            BackupListener l = running;
            if (l != null) {
                l.removeName();
            }
        }
    }
}
