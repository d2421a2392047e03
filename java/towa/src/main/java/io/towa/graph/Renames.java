package io.towa.graph;

import io.towa.policy.Numbered;
import io.towa.pool.Records;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;

/**
 * Finds the classes and root fields that a pool names: by {@link io.towa.TowaOptions#renamed}, by the origins of anonymous and local classes, and by the loader of the
 * options.
 */
final class Renames {
    /** Why an anonymous or local class is lost, and what to do. */
    static final String LOST = "its name has a number from the compiler, and that has come to stand for other code, or the code was changed; if it is the class as you changed it,"
        + " map it to itself once, if it has another name, to that (TowaOptions.withRenamed); declare classes that a pool holds as members, so that they have a name of their own";

    private final Map<String, String> renamed;
    private final ClassLoader loader;
    private final NumberedClasses numbered;
    /** See {@link #followed}. */
    private volatile boolean followed;
    /** Saved names of numbered classes that the pool refers to outside a class record; recovery asks in parallel. */
    private final Set<String> used = ConcurrentHashMap.newKeySet();

    Renames(String pool, Map<String, String> renamed, ClassLoader loader, List<Records.ClassRecord> classes) {
        this.renamed = renamed;
        ClassLoader context = loader != null ? loader : Thread.currentThread().getContextClassLoader();
        this.loader = context != null ? context : ClassLoader.getSystemClassLoader();
        numbered = new NumberedClasses(pool, classes, renamed, this.loader);
    }

    ClassLoader loader() {
        return loader;
    }

    /** Today's binary name of a class; of an array, with that of its elements. */
    String name(String saved) {
        String element = element(saved);
        String now = renamed.get(element);
        now = now != null ? now : numbered.name(element);
        return now == null ? saved : replaced(saved, element, now);
    }

    /** Today's form of the descriptor of a class that the pool refers to as such; null if that is an anonymous or local one that this program does not have any more. */
    String descriptor(String saved) {
        if (!saved.endsWith(";") || saved.length() < 3) {
            return saved;
        }
        int from = saved.indexOf('L') + 1;
        String now = use(className(saved));
        return now == null ? null : saved.substring(0, from) + now.replace('.', '/') + ";";
    }

    /** Today's name of a class that the pool refers to outside a class record; null if that is an anonymous or local one that this program does not have any more. */
    private String use(String was) {
        if (numbered.name(was) == null && !renamed.containsKey(was)) {
            return null;
        }
        String now = name(was);
        if (!now.equals(was) || numbered.isChanged(was)) {
            followed = true;
        }
        if (numbered.knows(was)) {
            used.add(Numbered.base(was));
        }
        return now;
    }

    /** Whether a class that the pool refers to outside a class record has changed, or has another name today: until the pool is rewritten, it has to be found by its old one. */
    boolean followed() {
        return followed;
    }

    /** Whether the pool refers to the anonymous or local class of a record outside class records: the record is needed without instances, too. */
    boolean isUsed(Records.ClassRecord r) {
        return !r.origin().isEmpty() && used.contains(Numbered.base(element(r.name())));
    }

    /** The binary name in the descriptor of a class, or of an array of it. */
    static String className(String descriptor) {
        return descriptor.substring(descriptor.indexOf('L') + 1, descriptor.length() - 1).replace('/', '.');
    }

    /** The class name in the name of an array; other names as they are. */
    static String element(String name) {
        int from = name.startsWith("[") && name.endsWith(";") ? name.indexOf('L') + 1 : 0;
        return from == 0 ? name : name.substring(from, name.length() - 1);
    }

    private static String replaced(String name, String element, String now) {
        return name.equals(element) ? now : name.substring(0, name.indexOf('L') + 1) + now + ";";
    }

    /** Whether the class of a record is an anonymous or local one that this program does not have any more. */
    boolean isLost(Records.ClassRecord r) {
        return !r.origin().isEmpty() && !renamed.containsKey(element(r.name())) && numbered.name(r) == null;
    }

    /** Whether the class of a record, of whatever name, is the one that was saved: false for an anonymous or local class that the options map though it has changed. */
    boolean isUnchanged(Records.ClassRecord r) {
        return numbered.isUnchanged(r);
    }

    /** Today's class and name of a root field; null if the program does without it. */
    RootField root(String className, String field) {
        String now = renamed.get(className + "#" + field);
        if (now == null) {
            return new RootField(name(className), field);
        }
        int hash = now.indexOf('#');
        return now.isEmpty() ? null : new RootField(now.substring(0, hash), now.substring(hash + 1));
    }

    /** Whether it is mapped itself, and not only its class. */
    boolean isMapped(String className, String field) {
        return renamed.containsKey(className + "#" + field);
    }

    /** A static field, by the binary name of its class and its own. */
    record RootField(String className, String field) {
        @Override
        public String toString() {
            return className + "#" + field;
        }
    }

    Class<?> load(String saved) throws ClassNotFoundException {
        String now = use(saved);
        if (now == null) {
            throw new ClassNotFoundException(saved + ": " + LOST);
        }
        return Class.forName(now, false, loader);
    }

    /** Loads the class of a record that is not lost. */
    Class<?> load(Records.ClassRecord r) throws ClassNotFoundException {
        String element = element(r.name());
        String now = r.origin().isEmpty() || renamed.containsKey(element) ? null : numbered.name(r);
        return Class.forName(now == null ? name(r.name()) : replaced(r.name(), element, now), false, loader);
    }
}
