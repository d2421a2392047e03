package systemtest.libraries;

import java.util.Collection;
import java.util.Map;
import java.util.function.Consumer;
import java.util.function.Function;
import java.util.function.Supplier;

/**
 * One structure of a library, and what a program does with it.
 *
 * @param make makes it, empty; called again, it makes an equal one
 * @param fill fills it; it is durable by then
 * @param more changes it after a restart
 * @param show its whole content as a text; null: {@link Content} finds out
 */
record Structure(String name, Supplier<?> make, Consumer<Object> fill, Consumer<Object> more, Function<Object, String> show) {
    private static final int ENTRIES = 1000;

    /** A structure that is filled and changed by its own methods. */
    @SuppressWarnings("unchecked")
    static <T> Structure of(String name, Supplier<T> make, Consumer<T> fill, Consumer<T> more) {
        return new Structure(name, make, o -> fill.accept((T) o), o -> more.accept((T) o), null);
    }

    /** One that never changes. */
    static Structure value(String name, Supplier<?> make) {
        return new Structure(name, make, o -> { }, o -> { }, null);
    }

    static Structure map(String name, Supplier<? extends Map<String, Integer>> make) {
        return of(name, make::get, m -> {
            for (int i = 0; i < ENTRIES; i++) {
                m.put("key " + i, i);
            }
            for (int i = 0; i < ENTRIES; i += 3) {
                m.remove("key " + i);
            }
        }, m -> {
            for (int i = ENTRIES / 2; i < 2 * ENTRIES; i++) {
                m.put("key " + i, -i);
            }
        });
    }

    static Structure collection(String name, Supplier<? extends Collection<String>> make) {
        return of(name, make::get, c -> {
            for (int i = 0; i < ENTRIES; i++) {
                c.add("element " + i);
            }
            for (int i = 0; i < ENTRIES; i += 3) {
                c.remove("element " + i);
            }
        }, c -> {
            for (int i = 0; i < ENTRIES; i++) {
                c.add("more " + i);
            }
        });
    }

    /** The same, shown in a way of its own. */
    @SuppressWarnings("unchecked")
    <T> Structure shown(Function<T, String> by) {
        return new Structure(name, make, fill, more, o -> by.apply((T) o));
    }

    /** A new one as it is after so many rounds. */
    Object fresh(int rounds) {
        Object o = make.get();
        fill.accept(o);
        if (rounds > 1) {
            more.accept(o);
        }
        return o;
    }

    String content(Object o) {
        return show != null ? show.apply(o) : Content.of(o);
    }
}
