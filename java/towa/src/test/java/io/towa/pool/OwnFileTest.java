package io.towa.pool;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.towa.Durability;
import io.towa.PoolException;
import io.towa.PoolException.Reason;
import io.towa.medium.SystemCalls;
import java.nio.channels.FileChannel;
import java.nio.file.Files;
import java.nio.file.LinkOption;
import java.nio.file.Path;
import java.nio.file.StandardCopyOption;
import java.nio.file.StandardOpenOption;
import java.nio.file.attribute.PosixFilePermissions;
import org.junit.jupiter.api.Assumptions;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

/** Names of a pool's files that another user took first, or that another user can write to: refused, and left as they are. */
class OwnFileTest {
    private static final int STRANGER = 4711;

    @TempDir
    Path dir;

    private Path file() {
        return dir.resolve("p");
    }

    private Path log() {
        return dir.resolve("p.log");
    }

    private void opens(Durability d) {
        new PoolFile(file(), 1 << 20, d).close();
    }

    private void refused(String words) throws Exception {
        refused(words, Durability.PROCESS);
        refused(words, Durability.POWER);
    }

    private void refused(String words, Durability d) throws Exception {
        byte[] before = Files.readAllBytes(file());
        PoolException e = assertThrows(PoolException.class, () -> new PoolFile(file(), 1 << 20, d), words);
        assertEquals(Reason.FOREIGN, e.reason(), e.getMessage());
        assertTrue(e.getMessage().contains(words), e.getMessage());
        assertArrayEquals(before, Files.readAllBytes(file()));
    }

    private static Path mode(Path p, String mode) throws Exception {
        return Files.setPosixFilePermissions(p, PosixFilePermissions.fromString(mode));
    }

    private static void mustBeRoot() {
        Assumptions.assumeTrue(SystemCalls.user() == 0, "SKIP: root alone gives files away");
    }

    @Test
    void anEmptyFileOfOnesOwnIsAnInterruptedCreation() throws Exception {
        mode(Files.createFile(file()), "rw-------");
        opens(Durability.POWER);
        opens(Durability.PROCESS);
    }

    @Test
    void whatOthersCanWriteIsRefusedEmptyOrNot() throws Exception {
        mode(Files.createFile(file()), "rw-rw-rw-");
        refused("chmod go-w");
        mode(file(), "rw-r--r--");
        opens(Durability.PROCESS);
        mode(file(), "rw-rw----");
        refused("(mode 660)");
    }

    @Test
    void aFileOfAnotherUserIsRefusedEmptyOrNot() throws Exception {
        mustBeRoot();
        mode(Files.createFile(file()), "rw-------");
        Files.setAttribute(file(), "unix:uid", STRANGER);
        refused("TOWA_TRUST_OWNER=" + STRANGER);
        Files.setAttribute(file(), "unix:uid", 0);
        opens(Durability.PROCESS);
        Files.setAttribute(file(), "unix:uid", STRANGER);
        refused("belongs to user " + STRANGER);
    }

    @Test
    void aFileWithASecondNameIsRefused() throws Exception {
        opens(Durability.PROCESS);
        Files.createLink(dir.resolve("q"), file());
        refused("has 2 names");
        Files.delete(dir.resolve("q"));
        opens(Durability.PROCESS);
    }

    @Test
    void aLinkOfOnesOwnIsFollowedAndOneOfAnotherUserIsNot() throws Exception {
        Path pool = dir.resolve("pool");
        mode(Files.createFile(pool), "rw-------");
        Files.createSymbolicLink(file(), pool);
        opens(Durability.POWER);
        mustBeRoot();
        Files.setAttribute(file(), "unix:uid", STRANGER, LinkOption.NOFOLLOW_LINKS);
        refused("is a link that user " + STRANGER + " made");
    }

    @Test
    void aLogThatWasThereFirst() throws Exception {
        opens(Durability.PROCESS);
        Path target = dir.resolve("target");
        Files.createSymbolicLink(log(), target);
        refused("is not a file", Durability.POWER);
        assertFalse(Files.exists(target));
        mode(Files.createFile(target), "rw-------");
        refused("is not a file");
        assertEquals(0, Files.size(target));
        Files.delete(log());
        Files.createLink(log(), target);
        refused("has 2 names");
        Files.delete(target);
        mode(log(), "rw-rw-rw-");
        refused("chmod go-w");
        mode(log(), "rw-------");
        opens(Durability.POWER);
        mustBeRoot();
        Files.createFile(log());
        Files.setAttribute(log(), "unix:uid", STRANGER);
        refused("belongs to user " + STRANGER);
    }

    @Test
    void aNameThatIsExchangedAfterTheOpeningHidesNothing() throws Exception {
        mustBeRoot();
        mode(Files.createFile(log()), "rw-------");
        Files.setAttribute(log(), "unix:uid", STRANGER);
        try (FileChannel opened = FileChannel.open(log(), StandardOpenOption.READ, StandardOpenOption.WRITE)) {
            Path own = mode(Files.createFile(dir.resolve("own")), "rw-------");
            Files.move(own, log(), StandardCopyOption.ATOMIC_MOVE);
            assertThrows(PoolException.class, () -> OwnFile.checkOpen(opened, log()));
        }
    }

    @Test
    void aLinkThatCameBetweenTheLookAndTheOpeningIsRefused() throws Exception {
        Path opened = mode(Files.createFile(dir.resolve("other")), "rw-------");
        Object key = Files.readAttributes(opened, java.nio.file.attribute.BasicFileAttributes.class).fileKey();
        mode(Files.createFile(file()), "rw-------");
        assertThrows(PoolException.class, () -> OwnFile.checkLed(file(), key));
        Files.delete(file());
        Files.createSymbolicLink(file(), opened);
        OwnFile.checkLed(file(), key);
        mustBeRoot();
        Files.setAttribute(file(), "unix:uid", STRANGER, LinkOption.NOFOLLOW_LINKS);
        assertThrows(PoolException.class, () -> OwnFile.checkLed(file(), key));
    }

    @Test
    void whoseAFileMayBe() {
        int file = 0100600;
        for (int owner : new int[] {0, 1000, 7, 8}) {
            OwnFile.check("p", file, owner, 1, 1000, "7, 8");
        }
        assertThrows(PoolException.class, () -> OwnFile.check("p", file, 78, 1, 1000, "7, 8"));
        assertThrows(PoolException.class, () -> OwnFile.check("p", file, 1001, 1, 1000, null));
        assertThrows(PoolException.class, () -> OwnFile.check("p", file, 1000, 1, 0, ""));
        assertThrows(PoolException.class, () -> OwnFile.check("p", 0010600, 0, 1, 0, null));
    }
}
