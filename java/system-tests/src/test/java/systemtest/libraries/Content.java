package systemtest.libraries;

import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.io.ObjectInputStream;
import java.io.ObjectOutputStream;
import java.io.Serializable;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.Set;

/** What a structure holds, as its library tells: by iteration, look-up, equality and Java's serialisation. */
final class Content {
    private Content() {}

    /** The content as a text; sets and maps in the order of their texts. */
    static String of(Object o) {
        if (o instanceof Map<?, ?> m) {
            List<String> all = new ArrayList<>();
            for (Map.Entry<?, ?> e : m.entrySet()) {
                all.add(of(e.getKey()) + "=" + of(e.getValue()));
            }
            Collections.sort(all);
            return m.size() + " " + all;
        }
        if (o instanceof Object[] a) {
            return of(Arrays.asList(a));
        }
        if (o instanceof Iterable<?> elements && !(o instanceof java.nio.file.Path)) {
            List<String> all = new ArrayList<>();
            elements.forEach(e -> all.add(of(e)));
            if (o instanceof Set<?>) {
                Collections.sort(all);
            }
            return all.toString();
        }
        return String.valueOf(o);
    }

    /** How {@code kept} differs from {@code fresh}, which it should be equal to; null: it does not. */
    static String difference(Structure s, Object kept, Object fresh, Object another) {
        if (kept == null || kept.getClass() != fresh.getClass()) {
            return "is a " + (kept == null ? null : kept.getClass());
        }
        String want = s.content(fresh);
        String got = s.content(kept);
        if (!got.equals(want)) {
            return "holds " + cut(got) + " instead of " + cut(want);
        }
        if (fresh.equals(another) && (!kept.equals(fresh) || !fresh.equals(kept) || kept.hashCode() != fresh.hashCode() && fresh.hashCode() == another.hashCode())) {
            return "is not equal to one of the same content";
        }
        if (fresh == another && kept != fresh && isOneInEachRun(fresh)) {
            return "is not the one object of its kind";
        }
        if (kept instanceof Map<?, ?> m && fresh instanceof Map<?, ?> f) {
            for (Object key : new ArrayList<Object>(f.keySet())) {
                if (!m.containsKey(key) || !Objects.equals(of(m.get(key)), of(f.get(key)))) {
                    return "does not find " + key;
                }
            }
        }
        return serialised(s, kept, fresh, want);
    }

    /** Whether there is one such object, and the library does not only remember the last ones: then its class finds it when it is read, too. */
    private static boolean isOneInEachRun(Object o) {
        try {
            return !(o instanceof Serializable) || again(o) == o;
        } catch (IOException | ClassNotFoundException | RuntimeException e) {
            return true;
        }
    }

    private static String serialised(Structure s, Object kept, Object fresh, String want) {
        if (!(kept instanceof Serializable)) {
            return null;
        }
        try {
            if (!s.content(again(fresh)).equals(want)) {
                return null;
            }
        } catch (IOException | ClassNotFoundException | RuntimeException e) {
            // Also a new one cannot be serialised.
            return null;
        }
        try {
            String got = s.content(again(kept));
            return got.equals(want) ? null : "is serialised as " + cut(got) + " instead of " + cut(want);
        } catch (IOException | ClassNotFoundException | RuntimeException e) {
            return "cannot be serialised: " + e;
        }
    }

    private static Object again(Object o) throws IOException, ClassNotFoundException {
        ByteArrayOutputStream bytes = new ByteArrayOutputStream();
        try (ObjectOutputStream out = new ObjectOutputStream(bytes)) {
            out.writeObject(o);
        }
        try (ObjectInputStream in = new ObjectInputStream(new ByteArrayInputStream(bytes.toByteArray()))) {
            return in.readObject();
        }
    }

    static String cut(String s) {
        return s.length() > 200 ? s.substring(0, 200) + "..." : s;
    }
}
