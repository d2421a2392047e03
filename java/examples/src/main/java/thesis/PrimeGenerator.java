package thesis;

// Figure 6.2 of the thesis; what it elides is between the marks.
class PrimeGenerator {
    int[] primes; // the primes
    int i; // how many there are now

    // [elided: the thesis' is 10000000]
    static final int COUNT = Integer.getInteger("count", 10000000);

    PrimeGenerator() {
        primes = new int[COUNT];
        i = 0;
    }

    boolean isPrime(int n) {
        // [elided: divides by the primes found so far, up to the square root]
        for (int k = 0; k < i && (long) primes[k] * primes[k] <= n; k++) {
            if (n % primes[k] == 0) {
                return false;
            }
        }
        return true;
        // [/elided]
    }

    void generate() {
        int n = i == 0 ? 2 : primes[i - 1] + 1;
        while (i < primes.length) {
            if (isPrime(n)) {
                primes[i] = n;
                i++;
            }
            n++;
        }
    }

    // [elided: the verification phase, which does not use durable data to decide]
    /** How many of the primes are right; all of the first {@code i} must be, in order and without a gap. */
    boolean verify() {
        int n = 2;
        for (int k = 0; k < i; k++, n++) {
            while (!byDivision(n)) {
                n++;
            }
            if (primes[k] != n) {
                System.err.println("primes[" + k + "] is " + primes[k] + " instead of " + n);
                return false;
            }
        }
        return true;
    }

    private static boolean byDivision(int n) {
        for (int d = 2; (long) d * d <= n; d++) {
            if (n % d == 0) {
                return false;
            }
        }
        return true;
    }
}
