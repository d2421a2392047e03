package systemtest.soak;

import java.math.BigDecimal;
import java.math.BigInteger;
import java.time.Duration;
import java.time.Instant;
import java.time.LocalDate;
import java.time.LocalDateTime;
import java.time.Period;
import java.time.ZoneId;
import java.time.ZonedDateTime;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Base64;
import java.util.Date;
import java.util.HashMap;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.Optional;
import java.util.Random;
import java.util.Set;
import java.util.UUID;
import java.util.concurrent.atomic.AtomicInteger;

/** Random values of all the kinds that programs keep. */
final class Values {
    private Values() {}

    enum Colour {
        RED,
        GREEN {
            @Override
            int weight() {
                return 7;
            }
        },
        BLUE;

        int weight() {
            return 1;
        }
    }

    record Point(int x, long y, String name, Point next) {}

    /** Keys by identity: its hash must survive. */
    static final class Key {
        final int n;

        Key(int n) {
            this.n = n;
        }
    }

    static Object any(Random r) {
        switch (r.nextInt(30)) {
            case 0: return r.nextInt(100);
            case 1: return r.nextLong();
            case 2: return r.nextDouble();
            case 3: return (char) ('a' + r.nextInt(26));
            case 4: return "text " + r.nextInt(1000);
            case 5: return "é€𝄞" + r.nextInt(10);
            case 6: return new BigInteger(1 + r.nextInt(200), r);
            case 7: return new BigDecimal(new BigInteger(60, r), r.nextInt(20));
            case 8: return new UUID(r.nextLong(), r.nextLong());
            case 9: return LocalDate.ofEpochDay(r.nextInt(30000));
            case 10: return Instant.ofEpochSecond(r.nextInt(), r.nextInt(1_000_000_000));
            case 11: return Duration.ofMillis(r.nextInt());
            case 12: return ZonedDateTime.of(LocalDateTime.of(2020, 1, 1 + r.nextInt(28), 3, 4), ZoneId.of(r.nextBoolean() ? "Europe/Berlin" : "UTC"));
            case 13: return Optional.of(r.nextInt());
            case 14: return Colour.values()[r.nextInt(3)];
            case 15: return new Point(r.nextInt(), r.nextLong(), "p", r.nextBoolean() ? null : new Point(1, 2, "q", null));
            case 16: return bytes(r, r.nextInt(40));
            case 17: return new int[] {r.nextInt(), r.nextInt()};
            case 18: return new Object[] {"a", r.nextInt(), null, new long[] {r.nextLong()}};
            case 19: return List.of(r.nextInt(), "b", Colour.RED);
            case 20: return Map.of("k", r.nextInt(), "l", "m");
            case 21: return Set.of(r.nextInt(5), "s");
            case 22: return new ArrayList<>(Arrays.asList(r.nextInt(), r.nextInt(), "c"));
            case 23: return new HashMap<>(Map.of(1, "x", r.nextInt(), "y"));
            case 24: return new Date(r.nextLong() >>> 20);
            case 25: return r.nextBoolean() ? Locale.GERMANY : Locale.of("ja", "JP");
            case 26: return new AtomicInteger(r.nextInt());
            case 27: return new StringBuilder("sb").append(r.nextInt());
            case 28: return r.nextBoolean() ? String.class : int[].class;
            default: return r.nextBoolean() ? Period.of(1, r.nextInt(12), 3) : Base64.getEncoder().encodeToString(bytes(r, 9));
        }
    }

    static byte[] bytes(Random r, int n) {
        byte[] b = new byte[n];
        r.nextBytes(b);
        return b;
    }

    /** Comparable, with the other keys of the same structure. */
    static String key(Random r) {
        return "key-" + r.nextInt(96);
    }
}
