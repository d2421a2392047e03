package io.towa.agent;

import java.lang.ref.WeakReference;

/**
 * The static fields from which objects are durable, as the weaver finds them in the classes it sees; and fields that are marked as such, and can be none.
 *
 * <p>Always true: a field is known here before the first store to it (its class is woven before it is initialized).
 */
public final class RootFields {
    /** One such field; names as in class files. */
    public static final class Root {
        public final String className;
        public final String field;
        public final String desc;
        /** Final fields are roots only where every static field is one. */
        public final boolean isFinal;
        /** By annotation, not because every static field is one. */
        public final boolean annotated;
        private final WeakReference<ClassLoader> loader;

        Root(String className, String field, String desc, boolean isFinal, boolean annotated, ClassLoader loader) {
            this.className = className;
            this.field = field;
            this.desc = desc;
            this.isFinal = isFinal;
            this.annotated = annotated;
            this.loader = loader == null ? null : new WeakReference<ClassLoader>(loader);
        }

        /** Defining loader of the class: null for the boot loader, or if it is gone. */
        public ClassLoader loader() {
            return loader == null ? null : loader.get();
        }

        public boolean gone() {
            return loader != null && loader.get() == null;
        }
    }

    private static volatile Root[] roots = new Root[0];
    /** By field number: 0 not looked at yet, 1 no root has that name and type, 2 some root has. */
    private static volatile byte[] answers = new byte[0];

    private RootFields() {}

    static synchronized void add(String className, String field, String desc, boolean isFinal, boolean annotated, ClassLoader loader) {
        for (int i = 0; i < roots.length; i++) {
            Root r = roots[i];
            if (r.field.equals(field) && r.className.equals(className) && r.loader() == loader && r.desc.equals(desc)) return;
        }
        Root[] more = new Root[roots.length + 1];
        System.arraycopy(roots, 0, more, 0, roots.length);
        more[roots.length] = new Root(className, field, desc, isFinal, annotated, loader);
        roots = more;
        answers = new byte[0];
    }

    /** Whether this field is a durable root: by its annotation, or because the weaver takes every static field for one. Its class need not be initialised. */
    public static boolean holds(java.lang.reflect.Field f) {
        String owner = f.getDeclaringClass().getName().replace('.', '/');
        Root[] all = roots;
        for (int i = 0; i < all.length; i++) {
            Root r = all[i];
            if (r.field.equals(f.getName()) && r.className.equals(owner) && r.loader() == f.getDeclaringClass().getClassLoader()) return true;
        }
        java.lang.annotation.Annotation[] annotations = f.getDeclaredAnnotations();
        for (int i = 0; i < annotations.length; i++) {
            String name = annotations[i].annotationType().getName();
            if (name.equals("io.towa.DurableRoot") || name.equals("rbp.durableroot")) return true;
        }
        return false;
    }

    /** The class of that binary name with that root, if one loader has loaded it, and only one; else null. */
    public static Class<?> owner(String className, String field) {
        String name = className.replace('.', '/');
        Root[] all = roots;
        ClassLoader found = null;
        for (int i = 0; i < all.length; i++) {
            Root r = all[i];
            ClassLoader l = r.loader();
            if (l == null || l == found || !r.field.equals(field) || !r.className.equals(name)) continue;
            if (found != null) return null;
            found = l;
        }
        try {
            return found == null ? null : Class.forName(className, false, found);
        } catch (ClassNotFoundException e) {
            return null;
        }
    }

    /** How many there are; the list only grows. */
    public static int count() {
        return roots.length;
    }

    public static synchronized Root[] all() {
        return roots.clone();
    }

    /** False only if no root has the name and type of that field. */
    public static boolean mayBeRoot(int fieldId) {
        byte[] known = answers;
        if (fieldId < known.length && known[fieldId] != 0) return known[fieldId] == 2;
        return look(fieldId);
    }

    private static synchronized boolean look(int fieldId) {
        String name = FieldIds.name(fieldId);
        String desc = FieldIds.desc(fieldId);
        boolean found = false;
        for (int i = 0; i < roots.length && !found; i++) found = roots[i].field.equals(name) && roots[i].desc.equals(desc);
        byte[] known = answers;
        if (fieldId >= known.length) {
            byte[] more = new byte[Math.max(fieldId + 1, FieldIds.count())];
            System.arraycopy(known, 0, more, 0, known.length);
            known = more;
        }
        known[fieldId] = (byte) (found ? 2 : 1);
        answers = known;
        return found;
    }
}
