package io.towa.graph;

import static org.junit.jupiter.api.Assertions.assertEquals;

import io.towa.Durability;
import java.math.BigDecimal;
import java.nio.file.Path;
import java.util.Currency;
import java.util.List;
import java.util.Optional;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;

/** A store that was not mirrored is found, also if what it stored is equal to what was there. */
class CheckerTest {
    private final Object[] all = new Object[1];

    @BeforeEach
    void open() {
        DirectPool.open(SavedPool.file(), 16 << 20, Durability.PROCESS);
        DirectPool.setRoot(all);
    }

    @AfterEach
    void close() {
        DirectPool.close();
    }

    /** Stores {@code kept} as a program does, and {@code now} past the barriers. */
    private void check(int differences, Object kept, Object now) {
        DirectPool.set(all, 0, kept);
        assertEquals(List.of(), Checker.check());
        all[0] = now;
        assertEquals(differences, Checker.check().size(), kept + " and " + now);
        DirectPool.set(all, 0, null);
    }

    @Test
    void equalIsNotTheSame() {
        check(1, Path.of("a"), Path.of("a"));
        check(1, Path.of("a"), Path.of("b"));
        check(1, 5_000, 5_000);
        check(1, new BigDecimal("1.5"), new BigDecimal("1.5"));
        check(1, 5, new BigDecimal("5").intValueExact() + 1);
        check(1, Optional.empty(), Optional.of("a"));
        check(1, Currency.getInstance("EUR"), Currency.getInstance("USD"));
    }

    /** String deduplication lets equal strings share their bytes. */
    @Test
    void aStringMayHaveOtherBytesThatAreEqual() throws Exception {
        var unsafe = jdk.internal.misc.Unsafe.getUnsafe();
        long bytes = DirectPool.offset("", "value");
        String s = new String("abc".toCharArray());
        DirectPool.set(all, 0, s);
        for (String other : new String[] {"abc", "abd", "ab", "abcd"}) {
            Object others = unsafe.getReference(new String(other.toCharArray()), bytes);
            unsafe.putReference(s, bytes, others);
            assertEquals(other.equals("abc") ? 0 : 1, Checker.check().size(), other);
        }
        DirectPool.set(all, 0, null);
    }

    @Test
    void ofOneObjectEachReplicaWillDo() {
        for (Object one : new Object[] {5, Currency.getInstance("EUR"), Optional.empty(), Thread.State.NEW, String.class}) {
            DirectPool.set(all, 0, one);
            long first = Replicas.position(Replicas.find(one));
            // The object loses its replica, as if that had been another one, which the collector has freed.
            Replicas.remove(one, first);
            assertEquals(List.of(), Checker.check(), one.toString());
            DirectPool.set(all, 0, null);
        }
        Path several = Path.of("a");
        DirectPool.set(all, 0, several);
        Replicas.remove(several, Replicas.position(Replicas.find(several)));
        assertEquals(1, Checker.check().size());
        DirectPool.set(all, 0, null);
    }
}
