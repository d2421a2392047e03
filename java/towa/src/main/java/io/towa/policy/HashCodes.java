package io.towa.policy;

import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

/**
 * The code of {@code hashCode()}, by which a version of a class is told from another: hash tables that have instances for keys must be made anew if it is another one.
 * Of a record that code names the components in their order.
 *
 * <p>The digest is that of the method {@code hashCode()} and of those that it calls, as far as they are of the class, of one above it, or of an interface; of a class
 * below one of the JDK's, such as {@code AbstractList}, that of all methods. Methods of other classes count by their names.
 */
public final class HashCodes {
    /** In place of a digest: the class has the {@code hashCode()} of {@link Object}. */
    public static final String NONE = "0";

    private HashCodes() {}

    /** Whether instances of {@code c} have the hash code of their identity. */
    public static boolean isIdentity(Class<?> c) {
        try {
            Class<?> by = c.getMethod("hashCode").getDeclaringClass();
            return by == Object.class || by == Enum.class;
        } catch (NoSuchMethodException | LinkageError e) {
            return false;
        }
    }

    /** @return at most 16 hexadecimal digits; empty: the code is not known, for the class has no file that can be read */
    public static String digest(Class<?> c) {
        List<byte[]> chain = new ArrayList<>();
        Map<String, Class<?>> interfaces = new LinkedHashMap<>();
        Class<?> base = c;
        for (Class<?> k = c; k != null && k.getClassLoader() != null; k = k.getSuperclass()) {
            base = k.getSuperclass();
            chain.add(ClassFiles.read(k.getClassLoader(), k.getName()));
            addInterfaces(k, interfaces);
        }
        if (chain.contains(null)) {
            return "";
        }
        try {
            return Long.toHexString(CodeDigest.ofHashCode(chain, interfaces.keySet(), base != Object.class && base != Record.class,
                name -> ClassFiles.read(interfaces.get(name).getClassLoader(), name)));
        } catch (RuntimeException e) {
            return "";
        }
    }

    private static void addInterfaces(Class<?> k, Map<String, Class<?>> into) {
        for (Class<?> i : k.getInterfaces()) {
            if (i.getClassLoader() != null && into.put(i.getName().replace('.', '/'), i) == null) {
                addInterfaces(i, into);
            }
        }
    }

    /** Whether two digests may be of the same code; one that is not known may be of any. */
    public static boolean same(String a, String b) {
        return a.isEmpty() || b.isEmpty() || a.equals(b);
    }
}
