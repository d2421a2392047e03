package io.towa.pool;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.towa.Durability;
import io.towa.PoolException;
import io.towa.PoolException.Reason;
import io.towa.TowaOptions;
import io.towa.medium.Nvm;
import java.io.RandomAccessFile;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

/** Files of a pool that are not of one moment, not whole, not its own any more, or in use: told, and left as they are. */
class MomentsTest {
    private static final TowaOptions RARELY = TowaOptions.DEFAULT.withInterval(Duration.ofHours(1));
    private static final long AT = 100_000;

    @TempDir
    Path dir;

    private Path file() {
        return dir.resolve("p");
    }

    private Path log() {
        return dir.resolve("p.log");
    }

    private PoolFile open(Durability d) {
        return new PoolFile(file(), 1 << 20, d);
    }

    private void refused(Reason reason, String words) throws Exception {
        byte[] before = Files.readAllBytes(file());
        for (Durability d : Durability.values()) {
            PoolException e = assertThrows(PoolException.class, () -> open(d), words);
            assertEquals(reason, e.reason(), e.getMessage());
            assertTrue(e.getMessage().contains(words), e.getMessage());
        }
        assertArrayEquals(before, Files.readAllBytes(file()));
    }

    /** A run that commits this number, and is killed. */
    private void run(long value) {
        PoolFile p = open(Durability.POWER);
        Committer c = Committer.start(p, RARELY);
        Nvm.putLong(AT, value);
        c.sync();
        c.end();
        p.abandon();
    }

    private void holds(long value) {
        PoolFile p = open(Durability.PROCESS);
        assertEquals(value, Nvm.getLong(AT));
        p.close();
    }

    @Test
    void filesOfTwoMoments() throws Exception {
        run(1);
        byte[] first = Files.readAllBytes(file());
        byte[] firstLog = Files.readAllBytes(log());
        run(2);
        byte[] second = Files.readAllBytes(file());
        byte[] secondLog = Files.readAllBytes(log());
        Files.write(log(), firstLog);
        refused(Reason.DAMAGED, "of another opening");
        Files.write(file(), first);
        Files.write(log(), secondLog);
        refused(Reason.DAMAGED, "of another opening");
        Files.delete(log());
        refused(Reason.DAMAGED, "is not there");
        Files.write(log(), new byte[0]);
        refused(Reason.DAMAGED, "is empty");
        Files.write(log(), firstLog);
        holds(1);
        byte[] closed = Files.readAllBytes(file());
        Files.write(file(), second);
        Files.write(log(), secondLog);
        holds(2);
        Files.write(file(), closed);
        Files.write(log(), secondLog);
        refused(Reason.DAMAGED, "a commit of another moment");
    }

    @Test
    void copiesOfAPoolInUse() throws Exception {
        PoolFile p = open(Durability.POWER);
        Committer c = Committer.start(p, RARELY);
        byte[][] files = new byte[4][];
        byte[][] logs = new byte[4][];
        for (int i = 0; i < 4; i++) {
            Nvm.putLong(AT, i);
            Nvm.putLong(AT + (200 << 10), i);
            c.sync();
            files[i] = Files.readAllBytes(file());
            logs[i] = Files.readAllBytes(log());
        }
        c.end();
        p.close();
        Files.deleteIfExists(log());
        int sound = 0;
        for (int from = 0; from < 4; from++) {
            for (int to = from; to < 4; to++) {
                for (byte[] log : logs) {
                    // The file's beginning is of one commit, and its end of a later one.
                    byte[] copy = files[to].clone();
                    System.arraycopy(files[from], 0, copy, 0, 200_000);
                    Files.write(file(), copy);
                    Files.write(log(), log);
                    try (PoolFile q = open(Durability.POWER)) {
                        assertEquals(Nvm.getLong(AT), Nvm.getLong(AT + (200 << 10)));
                        sound++;
                    } catch (PoolException e) {
                        assertTrue(e.getMessage().contains("not of one moment"), e.getMessage());
                    }
                    Files.deleteIfExists(log());
                }
            }
        }
        assertTrue(sound >= 4 && sound < 20, sound + " of 40 copies opened");
    }

    @Test
    void theLockOutlivesOtherCloses() throws Exception {
        PoolFile p = open(Durability.PROCESS);
        Files.readAllBytes(file());
        Files.copy(file(), dir.resolve("copy"));
        new RandomAccessFile(file().toFile(), "rw").close();
        PoolException e = assertThrows(PoolException.class, () -> open(Durability.PROCESS));
        assertEquals(Reason.BUSY, e.reason());
        assertTrue(e.getMessage().contains("this process"), e.getMessage());
        p.close();
        open(Durability.PROCESS).close();
    }

    @Test
    void aFileThatIsTakenAway() throws Exception {
        for (Path taken : new Path[] {file(), log()}) {
            PoolFile p = open(Durability.POWER);
            Committer c = Committer.start(p, RARELY);
            Path away = dir.resolve("away");
            Files.move(taken, away);
            Nvm.putLong(AT, 1);
            assertTrue(assertThrows(PoolException.class, c::sync).getMessage().contains("was moved or removed"));
            Files.writeString(taken, "another");
            assertTrue(assertThrows(PoolException.class, c::sync).getMessage().contains("was replaced"));
            Files.move(away, taken, java.nio.file.StandardCopyOption.REPLACE_EXISTING);
            c.sync();
            c.end();
            p.close();
        }
    }

    @Test
    void zerosInPlaceOfStructures() throws Exception {
        run(1);
        byte[] good = Files.readAllBytes(file());
        byte[] goodLog = Files.readAllBytes(log());
        long[][] places = {{0, 4096}, {4096, 256}, {0, 8192}, {Layout.DONE, 8}, {8192, 4096}, {Layout.FRONTIER, 8}, {Layout.MARK_NUMBER, 8}, {Layout.CYCLE, 8},
            {Layout.CLASSES, 8}, {Layout.ROOTS, 8}, {Layout.UNDO, 8}, {Layout.REHASH, 8}, {Layout.SECTIONS, 8}};
        for (long[] place : places) {
            byte[] bad = good.clone();
            java.util.Arrays.fill(bad, (int) place[0], (int) (place[0] + place[1]), (byte) 0);
            Files.write(file(), bad);
            // The number of a commit that the log has, or no log needed: then it is seen by itself.
            byte[] log = goodLog.clone();
            if (place[0] == Layout.DONE) {
                log[log.length - 1] ^= 1;
            }
            Files.write(log(), log);
            PoolException e = assertThrows(PoolException.class, () -> open(Durability.POWER), "zeros at " + place[0]);
            assertTrue(e.reason() == Reason.DAMAGED || e.reason() == Reason.FOREIGN, e.getMessage());
            assertArrayEquals(bad, Files.readAllBytes(file()));
        }
        Files.write(file(), good);
        byte[] log = goodLog.clone();
        java.util.Arrays.fill(log, 0, 4096, (byte) 0);
        Files.write(log(), log);
        assertThrows(PoolException.class, () -> open(Durability.POWER));
        log = goodLog.clone();
        java.util.Arrays.fill(log, 4096, 8192, (byte) 0);
        Files.write(log(), log);
        assertThrows(PoolException.class, () -> open(Durability.POWER));
        Files.write(log(), goodLog);
        holds(1);
    }

    /** Numbers of sections are taken durably before one is used, and none of them twice. */
    @Test
    void sectionNumbersGoOn() {
        long last = 0;
        for (int i = 0; i < 3; i++) {
            PoolFile p = open(Durability.PROCESS);
            UndoLog.open(p, new Allocator(p, p.superblock().capacity, Nvm.getLong(Layout.FRONTIER)));
            assertTrue(Nvm.getLong(Layout.SECTIONS) > last);
            last = Nvm.getLong(Layout.SECTIONS);
            StringBuilder done = new StringBuilder();
            Nvm.record(new Nvm.Recorder() {
                @Override
                public void store(long at, long bits, int bytes) {
                    done.append("store ").append(at).append(' ');
                }

                @Override
                public void writeBack(long at, long bytes) {
                    done.append("writeBack ").append(at).append(' ');
                }

                @Override
                public void fence() {
                    done.append("fence ");
                }
            });
            UndoLog.begin();
            Nvm.record(null);
            assertEquals("store 8256 writeBack 8256 fence ", done.toString());
            UndoLog.end();
            p.close();
        }
    }
}
