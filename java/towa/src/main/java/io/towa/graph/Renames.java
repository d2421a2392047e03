package io.towa.graph;

import java.util.Map;

/** Finds the classes that a pool names: by {@link io.towa.TowaOptions#renamed} and the loader of the options. */
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

    Class<?> load(String saved) throws ClassNotFoundException {
        return Class.forName(name(saved), false, loader);
    }
}
