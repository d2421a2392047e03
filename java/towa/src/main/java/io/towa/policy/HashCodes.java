package io.towa.policy;

/**
 * The code of {@code hashCode()}, by which a version of a class is told from another: hash tables that have instances for keys must be made anew if it is another one.
 * Of a record that code names the components in their order.
 *
 * <p>The digest is that of the methods {@code hashCode()} and {@code productElement(int)} (by which Scala hashes its case classes), and of those of the same class that
 * they call, of the class and of each one above it that is not the JDK's. Methods of other classes count by their names.
 */
public final class HashCodes {
    private HashCodes() {}

    /** @return at most 16 hexadecimal digits; empty: the code is not known, for the class has no file that can be read */
    public static String digest(Class<?> c) {
        long digest = 0;
        for (Class<?> k = c; k != null && k.getClassLoader() != null; k = k.getSuperclass()) {
            byte[] file = ClassFiles.read(k.getClassLoader(), k.getName());
            if (file == null) {
                return "";
            }
            try {
                digest = digest * 31 + CodeDigest.ofHashCode(file);
            } catch (RuntimeException e) {
                return "";
            }
        }
        return Long.toHexString(digest);
    }

    /** Whether two digests may be of the same code; one that is not known may be of any. */
    public static boolean same(String a, String b) {
        return a.isEmpty() || b.isEmpty() || a.equals(b);
    }
}
