package demo;

import java.util.List;
import java.util.Map;

/** The class whose static fields are the roots of the pools in tests/java-pool. */
public final class Shop {
    public static Map<String, Object> orders;
    public static int[] codes;
    public static Object nothing;
    public static long[] primes;
    public static List<Object> history;
    public static Object first;

    private Shop() {}
}
