package io.towa.graph;

import io.towa.PoolException;
import io.towa.PoolException.Reason;
import io.towa.policy.Numbered;
import io.towa.pool.Records;
import java.util.HashMap;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;

/**
 * The anonymous and local classes of a pool, and what they are called today: found by the origins in their class records ({@link Numbered}).
 *
 * <p>Always true: two of them never become one class of this program, unless the options map them so. One that is not found again has no name.
 */
final class NumberedClasses {
    /** A class as the pool knows it: its name without that of a member, and the origin that its record holds. */
    private record Saved(String base, String origin) {
        static Saved of(Records.ClassRecord r) {
            return new Saved(Numbered.base(Renames.element(r.name())), r.origin());
        }
    }

    /** Today's names; null: not found. */
    private final Map<Saved, String> today = new LinkedHashMap<>();
    /** Those that this program has under the saved name. */
    private final Set<Saved> unchanged = new HashSet<>();
    /** Today's names by saved ones; null if the class is not found, or two that have different names today were saved under that one. */
    private final Map<String, String> byName = new HashMap<>();

    /** @param renamed see {@link io.towa.TowaOptions#renamed}: for classes that the origins do not find */
    NumberedClasses(String pool, List<Records.ClassRecord> classes, Map<String, String> renamed, ClassLoader loader) {
        Map<Saved, List<String>> candidates = new LinkedHashMap<>();
        Set<String> taken = new HashSet<>();
        for (int i = 0; i < classes.size(); i++) {
            Saved s = Saved.of(classes.get(i));
            if (s.origin.isEmpty() || candidates.containsKey(s)) {
                continue;
            }
            List<String> found = Numbered.find(s.base, s.origin, loader);
            candidates.put(s, found);
            if (found.contains(s.base)) {
                unchanged.add(s);
            }
            requireNoOther(pool, s, found, renamed.get(s.base));
            String name = renamed.getOrDefault(s.base, unchanged.contains(s) ? s.base : null);
            today.put(s, name);
            taken.add(name);
        }
        candidates.forEach((s, found) -> {
            for (int i = 0; i < found.size() && today.get(s) == null; i++) {
                if (taken.add(found.get(i))) {
                    today.put(s, found.get(i));
                }
            }
        });
        today.forEach((s, name) -> byName.put(s.base, !byName.containsKey(s.base) || name != null && name.equals(byName.get(s.base)) ? name : null));
    }

    /** A mapping is for a class that is not found. Left in the program it would turn a class that has got the saved one's number into that. */
    private static void requireNoOther(String pool, Saved s, List<String> found, String mapped) {
        if (mapped != null && !found.isEmpty() && !found.contains(mapped)) {
            throw new PoolException(Reason.CHANGED_CLASS, pool + ": TowaOptions.withRenamed maps class " + s.base + " to " + mapped + ", but the class of that name which the pool has is "
                + String.join(" or ", found) + ": take that mapping back");
        }
    }

    /** Whether the pool has an origin for a class of that name. */
    boolean knows(String name) {
        return byName.containsKey(Numbered.base(name));
    }

    /** Whether the pool knows a class by that name, outside a class record, that is not quite as it was saved: it, or its name, has changed. */
    boolean isChanged(String name) {
        String base = Numbered.base(name);
        for (Saved s : today.keySet()) {
            if (s.base.equals(base) && !unchanged.contains(s)) {
                return true;
            }
        }
        return false;
    }

    /** Today's name of the class of a record, or of an array's elements; null: not found. */
    String name(Records.ClassRecord r) {
        Saved s = Saved.of(r);
        String name = today.get(s);
        return name == null ? null : name + Renames.element(r.name()).substring(s.base.length());
    }

    /** Whether the class of a record, of whatever name, is the one that was saved. */
    boolean isUnchanged(Records.ClassRecord r) {
        return r.origin().isEmpty() || unchanged.contains(Saved.of(r));
    }

    /** Today's name of a class that the pool calls {@code saved}, outside a class record; the same if the pool knows no numbered class of that name; null: not found. */
    String name(String saved) {
        String base = Numbered.base(saved);
        if (!byName.containsKey(base)) {
            return saved;
        }
        String name = byName.get(base);
        return name == null ? null : name + saved.substring(base.length());
    }
}
