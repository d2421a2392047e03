package io.towa.agent;

import java.io.InputStream;

/**
 * Whether a field named in a field reference is volatile.
 *
 * <p>Always true: no class is loaded to find out; a class not woven yet is read through its loader's resources. Unknown is answered
 * "not volatile", except in haste (before anything can be durable): then "volatile", which is right for any field, only slower, and the
 * class is woven again later. Classes of one name in several loaders are one here: volatile if it is so in any of them.
 */
final class Volatility {
    /** What is known of a class: its superclass, and its instance fields as name + descriptor. */
    private static final class Info {
        String superName;
        String[] volatiles;
        String[] others;
    }

    private static final NameMap<Info> KNOWN = new NameMap<Info>();
    private static final Info NOTHING = new Info();

    private Volatility() {}

    /** Remembers the fields of a class that is being woven. */
    static void record(ClassScan scan) {
        synchronized (KNOWN) {
            Info old = KNOWN.get(scan.name);
            Info now = info(scan);
            if (old != null && old.volatiles != null) now.volatiles = union(old.volatiles, now.volatiles);
            KNOWN.put(scan.name, now);
        }
    }

    private static Info info(ClassScan scan) {
        Info i = new Info();
        i.superName = scan.superName;
        i.volatiles = scan.instanceFields(true);
        i.others = scan.instanceFields(false);
        return i;
    }

    private static String[] union(String[] a, String[] b) {
        int n = 0;
        String[] all = new String[a.length + b.length];
        for (int k = 0; k < a.length; k++) all[n++] = a[k];
        for (int k = 0; k < b.length; k++) if (!has(a, b[k])) all[n++] = b[k];
        String[] fit = new String[n];
        System.arraycopy(all, 0, fit, 0, n);
        return fit;
    }

    static boolean isVolatile(String owner, String name, String desc, Weaver.Job job) {
        String field = name + desc;
        for (String c = owner; c != null; ) {
            Info i = of(c, job);
            if (i == null) {
                job.provisional = true;
                return true;
            }
            if (i.volatiles == null) return false;
            if (has(i.volatiles, field)) return true;
            if (has(i.others, field)) return false;
            c = i.superName;
        }
        return false;
    }

    private static boolean has(String[] in, String s) {
        for (int i = 0; i < in.length; i++) if (in[i].equals(s)) return true;
        return false;
    }

    /** null: unknown, and in haste. */
    private static Info of(String name, Weaver.Job job) {
        Info i;
        synchronized (KNOWN) {
            i = KNOWN.get(name);
        }
        if (i != null || job.hasty) return i;
        i = NOTHING;
        try {
            byte[] bytes = read(name + ".class", job.module, job.loader);
            if (bytes != null) i = info(new ClassScan(bytes));
        } catch (Exception e) {
            // Unknown: not volatile.
        }
        synchronized (KNOWN) {
            if (i != NOTHING && KNOWN.get(name) == null) KNOWN.put(name, i);
        }
        return i;
    }

    private static byte[] read(String path, Module module, ClassLoader loader) throws Exception {
        InputStream in = null;
        if (module != null && module.isNamed()) in = module.getResourceAsStream(path);
        if (in == null) in = Object.class.getModule().getResourceAsStream(path);
        if (in == null && loader != null) in = loader.getResourceAsStream(path);
        if (in == null) in = ClassLoader.getSystemResourceAsStream(path);
        if (in == null) return null;
        try {
            return in.readAllBytes();
        } finally {
            in.close();
        }
    }
}
