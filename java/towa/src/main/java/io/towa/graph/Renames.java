package io.towa.graph;

import java.util.Map;

/** Finds the classes and root fields that a pool names: by {@link io.towa.TowaOptions#renamed} and the loader of the options. */
final class Renames {
    private final Map<String, String> renamed;
    private final ClassLoader loader;

    Renames(Map<String, String> renamed, ClassLoader loader) {
        this.renamed = renamed;
        ClassLoader context = loader != null ? loader : Thread.currentThread().getContextClassLoader();
        this.loader = context != null ? context : ClassLoader.getSystemClassLoader();
    }

    ClassLoader loader() {
        return loader;
    }

    /** Today's binary name of a class; of an array, with that of its elements. */
    String name(String saved) {
        int dimensions = 0;
        while (dimensions < saved.length() && saved.charAt(dimensions) == '[') {
            dimensions++;
        }
        if (dimensions == 0) {
            String now = renamed.get(saved);
            return now != null ? now : saved;
        }
        if (!saved.endsWith(";")) {
            return saved;
        }
        return saved.substring(0, dimensions + 1) + name(saved.substring(dimensions + 1, saved.length() - 1)) + ";";
    }

    /** Today's form of a descriptor. */
    String descriptor(String saved) {
        if (!saved.endsWith(";") || saved.length() < 3) {
            return saved;
        }
        int from = saved.indexOf('L') + 1;
        return saved.substring(0, from) + name(saved.substring(from, saved.length() - 1).replace('/', '.')).replace('.', '/') + ";";
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
        return Class.forName(name(saved), false, loader);
    }
}
