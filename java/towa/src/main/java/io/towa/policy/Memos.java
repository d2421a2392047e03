package io.towa.policy;

import java.lang.reflect.Field;
import java.lang.reflect.Modifier;
import java.util.Collections;
import java.util.Locale;
import java.util.Map;
import java.util.Set;
import java.util.WeakHashMap;

/**
 * Fields in which a class remembers the hash code of an object: protocol buffers, Scala's and Kotlin's classes and many others do so. The hash code may depend on the
 * identity of what is not durable, as that of a protocol buffer's descriptor, and is another in the next run; what was remembered would be wrong for good.
 *
 * <p>Always true: a field that is said to be a memo is zero in each new object, has "hash" in its name, hashCode() of the object's class, or of one above it, tests and stores
 * it, and no other method of these classes uses it, but for equals() that compares it. So an object whose memo is zero is as one that was never asked for its hash code. A
 * class whose file is not there has none.
 */
final class Memos {
    /** Of a class whose file is not there. */
    private static final HashMemos UNKNOWN = new HashMemos(Set.of(), Set.of());
    private static final Map<Class<?>, HashMemos> KNOWN = Collections.synchronizedMap(new WeakHashMap<>());

    private Memos() {}

    /** Whether {@code f} of an instance of {@code c} remembers its hash code. */
    static boolean isMemo(Field f, Class<?> c) {
        boolean mayBe = (f.getType() == int.class || f.getType() == boolean.class) && !Modifier.isFinal(f.getModifiers())
            && f.getName().toLowerCase(Locale.ROOT).contains("hash");
        if (!mayBe || f.getDeclaringClass().getClassLoader() == null || !anyHashes(f.getDeclaringClass(), c)) {
            return false;
        }
        boolean remembered = false;
        for (Class<?> k = c; k != null && f.getDeclaringClass().isAssignableFrom(k); k = k.getSuperclass()) {
            HashMemos of = KNOWN.get(k);
            if (of == null) {
                of = read(k);
                KNOWN.put(k, of);
            }
            if (of == UNKNOWN || of.used().contains(f.getName())) {
                return false;
            }
            remembered |= of.remembered().contains(f.getName());
        }
        return remembered;
    }

    /** Whether {@code declaring} or a class between it and {@code c} says what the hash code is: most do not, and their files need not be read. */
    private static boolean anyHashes(Class<?> declaring, Class<?> c) {
        for (Class<?> k = c; k != null && declaring.isAssignableFrom(k); k = k.getSuperclass()) {
            if (Fields.method(k, "hashCode") != null) {
                return true;
            }
        }
        return false;
    }

    private static HashMemos read(Class<?> k) {
        byte[] file = ClassFiles.read(k.getClassLoader(), k.getName());
        try {
            return file == null ? UNKNOWN : HashMemos.of(file);
        } catch (RuntimeException e) {
            return UNKNOWN;
        }
    }
}
