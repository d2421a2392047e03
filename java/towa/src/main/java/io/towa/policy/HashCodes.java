package io.towa.policy;

import java.util.ArrayList;
import java.util.List;

/**
 * The code of {@code hashCode()}, by which a version of a class is told from another: hash tables that have instances for keys must be made anew if it is another one.
 * Of a record that code names the components in their order.
 *
 * <p>The digest is that of the methods {@code hashCode()} and {@code productElement(int)} (by which Scala hashes its case classes), and of those that they call, as far
 * as they are of the class or of one above it. Methods of other classes count by their names.
 */
public final class HashCodes {
    /** In place of a digest: the class has the {@code hashCode()} of {@link Object}, or of another class of the JDK's. */
    public static final String NONE = "0";

    private HashCodes() {}

    /** @return at most 16 hexadecimal digits; empty: the code is not known, for the class has no file that can be read */
    public static String digest(Class<?> c) {
        List<byte[]> chain = new ArrayList<>();
        for (Class<?> k = c; k != null && k.getClassLoader() != null; k = k.getSuperclass()) {
            byte[] file = ClassFiles.read(k.getClassLoader(), k.getName());
            if (file == null) {
                return "";
            }
            chain.add(file);
        }
        try {
            return Long.toHexString(CodeDigest.ofHashCode(chain));
        } catch (RuntimeException e) {
            return "";
        }
    }

    /** Whether two digests may be of the same code; one that is not known may be of any. */
    public static boolean same(String a, String b) {
        return a.isEmpty() || b.isEmpty() || a.equals(b);
    }
}
