package thesis;

/** The thesis' second program, which it describes and does not print: the n-th string is a fixed one joined with n. */
class StringGenerator {
    static final int COUNT = Integer.getInteger("count", 10000000);
    /** With the digits, a string takes some 472 bytes in the pool, as the thesis' do (472 MB for 10^6). */
    static final String FIXED = "durable ".repeat(Integer.getInteger("repeat", 46));

    String[] strings;
    int i;

    StringGenerator() {
        strings = new String[COUNT];
        i = 0;
    }

    void generate() {
        while (i < strings.length) {
            strings[i] = FIXED + i;
            i++;
        }
    }

    boolean verify() {
        for (int k = 0; k < strings.length; k++) {
            String right = k < i ? FIXED + k : null;
            // One string may be there that is not yet counted.
            if (!java.util.Objects.equals(strings[k], right) && !(k == i && (FIXED + k).equals(strings[k]))) {
                System.err.println("strings[" + k + "] is " + strings[k]);
                return false;
            }
        }
        return true;
    }
}
