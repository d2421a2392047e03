package io.towa.agent;

/** Names of classes that the compiler may have numbered. */
public final class NumberedNames {
    private NumberedNames() {}

    /** Whether a class of that internal or binary name may have a number from the compiler: {@code Shop$1}, {@code Shop$1Local}, {@code Shop$1$Member}. */
    public static boolean mayBe(String name) {
        for (int i = name.indexOf('$'); i >= 0 && i + 1 < name.length(); i = name.indexOf('$', i + 1)) {
            char next = name.charAt(i + 1);
            if (next >= '0' && next <= '9') return true;
        }
        return false;
    }
}
