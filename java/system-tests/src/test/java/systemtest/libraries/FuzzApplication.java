package systemtest.libraries;

import java.util.Random;

/** Keys of classes that a program has itself: other versions of it have other versions of these ({@link FuzzVersions}). */
public interface FuzzApplication {
    /** A key, also a value: the random numbers decide, in each version in the same way. */
    Object key(Random random);

    /** Constants of an enum, by their names; those that each version has. */
    Enum<?>[] constants();
}
