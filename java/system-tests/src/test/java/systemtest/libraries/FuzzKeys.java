package systemtest.libraries;

import com.google.common.collect.ImmutableList;
import java.math.BigDecimal;
import java.time.LocalDate;
import java.util.ArrayList;
import java.util.Comparator;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.Random;
import org.apache.commons.lang3.tuple.Pair;
import systemtest.harness.Entity;

/** Keys and values of the fuzz, of the JDK and of libraries, and how graphs of them are compared. */
final class FuzzKeys {
    /** A named class, so that sorted maps can be durable. */
    static final Comparator<Object> ORDER = new ByText();

    /** The program's own; of one version at a time. Without: none. */
    static FuzzApplication application;

    private FuzzKeys() {}

    /** Constants of the enum by which enum maps go. */
    static Enum<?>[] constants() {
        return application == null ? Thread.State.values() : application.constants();
    }

    private static final class ByText implements Comparator<Object> {
        @Override
        public int compare(Object a, Object b) {
            return a.toString().compareTo(b.toString());
        }
    }

    record Name(String first, int number) {}

    /** A text that no other key has: the names of the program's own classes may change, their texts do not. */
    static String text(Object key) {
        boolean own = application != null && key.getClass().getClassLoader() == application.getClass().getClassLoader();
        return own ? "own " + key : key.getClass() + " " + key;
    }

    static Object key(Random random) {
        if (application != null && random.nextBoolean()) {
            return application.key(random);
        }
        int n = random.nextInt(40);
        return switch (random.nextInt(13)) {
            case 0 -> n;
            case 1 -> (long) n << 33;
            case 2 -> "key " + n;
            case 3 -> Thread.State.values()[n % 6];
            case 4 -> new Name("name", n);
            case 5 -> new Entity(n);
            case 6 -> LocalDate.ofEpochDay(n);
            case 7 -> new BigDecimal(n).movePointLeft(1);
            case 8 -> ImmutableList.of("a", n);
            case 9 -> Pair.of("pair", n);
            case 10 -> io.vavr.collection.List.of("vavr", n);
            case 11 -> org.joda.time.LocalDate.fromDateFields(new java.util.Date(86_400_000L * n));
            default -> Integer.class;
        };
    }

    static Object value(Random random) {
        return switch (random.nextInt(5)) {
            case 0 -> "text " + random.nextInt();
            case 1 -> random.nextLong();
            case 2 -> Map.of("k" + random.nextInt(9), random.nextInt());
            case 3 -> List.of(random.nextInt(), "x");
            default -> key(random);
        };
    }

    /** How {@code kept} differs from {@code twin}; null: it does not. */
    static String difference(Object twin, Object kept) {
        if (kept == null || twin.getClass() != kept.getClass()) {
            return twin.getClass() + " came back as " + (kept == null ? null : kept.getClass());
        }
        if (twin instanceof Map<?, ?> a && kept instanceof Map<?, ?> b) {
            if (a.size() != b.size()) {
                return twin.getClass() + " has " + b.size() + " entries instead of " + a.size();
            }
            for (Map.Entry<?, ?> e : a.entrySet()) {
                Object found = b.get(e.getKey());
                String difference = found == null ? "is not found" : difference(e.getValue(), found);
                if (difference != null) {
                    return twin.getClass() + ": key " + e.getKey() + " (" + e.getKey().getClass() + "): " + difference;
                }
            }
            return null;
        }
        if (twin instanceof java.util.Set<?> a && kept instanceof java.util.Set<?> b) {
            for (Object o : a) {
                if (!b.contains(o)) {
                    return twin.getClass() + " does not find " + o + " (" + o.getClass() + ")";
                }
            }
            return a.size() == b.size() ? null : twin.getClass() + " has " + b.size() + " elements instead of " + a.size();
        }
        if (twin instanceof java.util.Collection<?> a && kept instanceof java.util.Collection<?> b) {
            List<Object> left = new ArrayList<>(a);
            List<Object> right = new ArrayList<>(b);
            if (left.size() != right.size()) {
                return twin.getClass() + " has " + right.size() + " elements instead of " + left.size();
            }
            for (int i = 0; i < left.size(); i++) {
                String difference = difference(left.get(i), right.get(i));
                if (difference != null) {
                    return twin.getClass() + "[" + i + "]: " + difference;
                }
            }
            return null;
        }
        return Objects.equals(twin, kept) && kept.equals(twin) && twin.hashCode() == kept.hashCode() ? null : kept + " instead of " + twin;
    }
}
