package systemtest.libraries;

import io.towa.DurableRoot;
import io.towa.NotDurableException;
import io.towa.Towa;
import io.towa.TowaOptions;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;

/**
 * Has each structure in a pool: the first run makes it and fills it while it is durable, the second compares it with a fresh one and changes it, the third compares it
 * again. Each run ends as a kill would end it. Prints a line for each structure: {@code kept}, {@code refused} or {@code BROKEN}, library, name, why.
 */
final class LibrariesProgram {
    @DurableRoot
    private static Map<String, Object> kept;
    /** Why structures were refused. */
    @DurableRoot
    private static Map<String, String> refused;

    private LibrariesProgram() {}

    static List<Structure> all() {
        List<Structure> all = new ArrayList<>(Google.all());
        all.addAll(Apache.all());
        all.addAll(Primitives.eclipse());
        all.addAll(Primitives.fastutil());
        all.addAll(Primitives.others());
        all.addAll(Languages.scala());
        all.addAll(Languages.kotlin());
        all.addAll(Languages.functional());
        all.addAll(Everyday.documents());
        all.addAll(Everyday.values());
        all.addAll(Everyday.concurrent());
        all.addAll(Everyday.frameworks());
        return all;
    }

    /** The jar that a structure's class is from, which tells the library and its version. */
    static String library(Object o) {
        Class<?> c = o.getClass();
        var source = c.getProtectionDomain().getCodeSource();
        String file = source == null ? "the JDK" : Path.of(source.getLocation().getPath()).getFileName().toString();
        return file.endsWith(".jar") ? file.substring(0, file.length() - 4) : file;
    }

    private static String key(Structure s, Object fresh) {
        return library(fresh) + "|" + s.name();
    }

    private static void make(Structure s) {
        String key = key(s, s.make().get());
        try {
            Object o = s.make().get();
            kept.put(key, o);
            s.fill().accept(o);
        } catch (NotDurableException e) {
            kept.remove(key);
            // The names of lambdas hold an address.
            refused.put(key, e.getMessage().replaceAll("Lambda/0x[0-9a-f]+", "Lambda"));
        }
    }

    /** Where a structure stores what cannot be durable only when it is looked at, that is refused then: its content is there all the same. */
    private static void look(Structure s, int rounds) {
        String key = key(s, s.make().get());
        try {
            compare(s, key, rounds);
        } catch (NotDurableException e) {
            refused.put(key, "in use: " + e.getMessage().replaceAll("Lambda/0x[0-9a-f]+", "Lambda"));
        }
        if (refused.containsKey(key)) {
            System.out.println("refused|" + key + "|" + refused.get(key));
        }
    }

    private static void compare(Structure s, String key, int rounds) {
        if (refused.containsKey(key)) {
            return;
        }
        String difference = Content.difference(s, kept.get(key), s.fresh(rounds), s.fresh(rounds));
        System.out.println(difference == null ? "kept|" + key : "BROKEN|" + key + "|" + difference);
        if (rounds == 1 && difference == null) {
            s.more().accept(kept.get(key));
        }
    }

    public static void main(String[] args) {
        int run = Integer.parseInt(args[1]);
        String only = args.length > 2 ? args[2] : "";
        Towa.open(Path.of(args[0]), TowaOptions.DEFAULT.withCapacity(256 << 20));
        if (run == 1) {
            kept = new HashMap<>();
            refused = new HashMap<>();
        }
        for (Structure s : all()) {
            if (!s.name().contains(only)) {
                continue;
            }
            try {
                if (run == 1) {
                    make(s);
                } else {
                    look(s, run - 1);
                }
            } catch (RuntimeException | LinkageError | StackOverflowError e) {
                StackTraceElement at = e.getStackTrace().length == 0 ? null : e.getStackTrace()[0];
                System.out.println("BROKEN|" + key(s, s.make().get()) + "|run " + run + ": " + e + " at " + at);
            }
        }
        Towa.verify().forEach(d -> System.out.println("BROKEN|verify|" + d));
        System.out.println("done");
        Runtime.getRuntime().halt(0);
    }
}
