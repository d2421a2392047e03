package io.towa.pool;

import io.towa.PoolException;
import io.towa.PoolException.Reason;
import io.towa.medium.SystemCalls;
import java.io.IOException;
import java.nio.channels.FileChannel;
import java.nio.file.FileAlreadyExistsException;
import java.nio.file.Files;
import java.nio.file.LinkOption;
import java.nio.file.NoSuchFileException;
import java.nio.file.OpenOption;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.nio.file.attribute.BasicFileAttributes;
import java.nio.file.attribute.FileAttribute;
import java.nio.file.attribute.PosixFilePermissions;
import java.util.Arrays;
import java.util.HashSet;
import java.util.Map;
import java.util.Set;

/**
 * Whether a file that was found is this user's own: whoever can write a pool's files makes objects of any class in the program that opens it, and
 * gets to see what it stores. In a directory that others can write to, a name may be taken before the program comes.
 *
 * <p>What must always hold: what is opened to be written is a regular file with one name, that belongs to this process's user, to root or to a user
 * whom {@code TOWA_TRUST_OWNER} names, and that no group and no others can write. A file of this user's that is empty is one of an interrupted
 * creation, and passes.
 */
final class OwnFile {
    private static final String TRUSTED = "TOWA_TRUST_OWNER";
    private static final int TYPE = 0170000;
    private static final int REGULAR = 0100000;
    private static final int OTHERS_WRITE = 022;

    private static final FileAttribute<?> OWNER_ONLY = PosixFilePermissions.asFileAttribute(PosixFilePermissions.fromString("rw-------"));

    private OwnFile() {}

    /** Makes an empty file that this user alone can read and write, unless another process has just made one. */
    static void makeUnlessThere(Path at) throws IOException {
        try {
            Files.newByteChannel(at, Set.of(StandardOpenOption.CREATE_NEW, StandardOpenOption.WRITE), OWNER_ONLY).close();
        } catch (FileAlreadyExistsException e) {
            // It is looked at as any other.
        }
    }

    /**
     * Opens a file of this user's to read and write it.
     *
     * @param more CREATE, if it is to be made where there is none
     * @return null: there is none
     */
    static FileChannel open(Path at, StandardOpenOption... more) throws IOException {
        Set<OpenOption> how = new HashSet<>(Set.of(StandardOpenOption.READ, StandardOpenOption.WRITE, LinkOption.NOFOLLOW_LINKS));
        how.addAll(Arrays.asList(more));
        FileChannel opened = null;
        try {
            opened = FileChannel.open(at, how, OWNER_ONLY);
            checkOpen(opened, at);
            return opened;
        } catch (NoSuchFileException e) {
            if (opened == null) {
                return null;
            }
            opened.close();
            throw e;
        } catch (IOException | RuntimeException e) {
            if (opened == null) {
                // A link cannot be opened, and the check says why.
                check(at, at.toString(), LinkOption.NOFOLLOW_LINKS);
            } else {
                opened.close();
            }
            throw e;
        }
    }

    /** Refuses an open file that is not this user's own, whatever its name leads to by now. */
    static void checkOpen(FileChannel opened, Path name) throws IOException {
        check(wayTo(SystemCalls.descriptor(opened), name), name.toString());
    }

    /** A way to an open file, whatever its name leads to by now; its name, where there is no such way. */
    static Path wayTo(int descriptor, Path name) {
        Path open = Path.of("/proc/self/fd/" + descriptor);
        return Files.exists(open) ? open : name;
    }

    /**
     * Refuses what is not this user's own.
     *
     * @param at     the file, or {@code /proc/self/fd/N}
     * @param shown  its name, for people
     * @param follow none, if {@code at} must not be a link
     */
    static void check(Path at, String shown, LinkOption... follow) throws IOException {
        Map<String, Object> status = Files.readAttributes(at, "unix:mode,uid,nlink", follow);
        check(shown, (int) status.get("mode"), (int) status.get("uid"), (int) status.get("nlink"), SystemCalls.user(), System.getenv(TRUSTED));
    }

    /** Refuses to go by a link that another user made: it may lead to any file of this user's. */
    static void checkLink(Path at) throws IOException {
        if (!Files.isSymbolicLink(at)) {
            return;
        }
        int owner = (int) Files.getAttribute(at, "unix:uid", LinkOption.NOFOLLOW_LINKS);
        if (!isTrusted(owner, SystemCalls.user(), System.getenv(TRUSTED))) {
            throw refused(at.toString(), "is a link that user " + owner + " made, who is not the user that opens it", "give the name of the file itself");
        }
    }

    /**
     * Refuses to go on with a file that the name did not lead to without another user's link: between the first look at the name and the opening, it may
     * have led elsewhere.
     *
     * @param key device and number of the open file
     */
    static void checkLed(Path at, Object key) throws IOException {
        checkLink(at);
        if (!key.equals(Files.readAttributes(at, BasicFileAttributes.class).fileKey())) {
            throw new PoolException(Reason.IO, at + ": led to another file a moment ago; open it again");
        }
    }

    static void check(String shown, int mode, int owner, int names, int me, String trusted) {
        if ((mode & TYPE) != REGULAR) {
            throw refused(shown, "is not a file (but a link, a directory or a device)", "remove it, or use another directory");
        }
        if (!isTrusted(owner, me, trusted)) {
            throw refused(shown, "belongs to user " + Integer.toUnsignedString(owner) + ", and not to user " + Integer.toUnsignedString(me)
                + ", who opens it, or root, and whoever writes a pool can make objects of any class in the program that opens it",
                "open it as its owner, give it to this user (chown), or set " + TRUSTED + "=" + Integer.toUnsignedString(owner) + " if that user is trusted; or use a"
                    + " directory that only this user can write to");
        }
        if ((mode & OTHERS_WRITE) != 0) {
            throw refused(shown, "can be written by other users (mode " + Integer.toOctalString(mode & 07777) + "), who could make objects of any class in the program"
                + " that opens it", "if only trusted users could write it so far, say: chmod go-w");
        }
        if (names > 1) {
            throw refused(shown, "has " + names + " names (hard links): other programs may have it by another name", "remove the other names, or copy it and open the copy");
        }
    }

    private static boolean isTrusted(int owner, int me, String trusted) {
        String user = Integer.toUnsignedString(owner);
        return owner == 0 || owner == me || trusted != null && Arrays.stream(trusted.split(",")).anyMatch(one -> one.trim().equals(user));
    }

    private static PoolException refused(String shown, String why, String wayOut) {
        return new PoolException(Reason.FOREIGN, shown + ": " + why + "; " + wayOut);
    }
}
