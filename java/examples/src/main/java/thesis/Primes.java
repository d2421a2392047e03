package thesis;

import rbp.*;

/** Figure 6.1 of the thesis: goes on where it was when it was killed. {@code java -javaagent:towa.jar -cp examples.jar thesis.Primes FILE} */
public class Primes {
    @durableroot
    static PrimeGenerator generator;

    public static void main(String[] args) {
        Recovery.setNvmFile(args[0]);
        if (Recovery.isValidData()) {
            ClassLoader[] clds = {Primes.class.getClassLoader()};
            Recovery.recovery(clds);
        } else {
            Recovery.init();
        }

        if (generator == null) generator = new PrimeGenerator();
        System.out.println("begin " + generator.i);

        generator.generate();

        System.out.println(generator.verify() ? "verified " + generator.i : "WRONG");
    }
}
