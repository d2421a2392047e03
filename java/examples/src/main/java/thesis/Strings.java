package thesis;

import rbp.*;

/** The thesis' string program. {@code java -javaagent:towa.jar -cp examples.jar thesis.Strings FILE} */
public class Strings {
    @durableroot
    static StringGenerator generator;

    public static void main(String[] args) {
        Recovery.setNvmFile(args[0]);
        if (Recovery.isValidData()) {
            Recovery.recovery(new ClassLoader[] {Strings.class.getClassLoader()});
        } else {
            Recovery.init();
        }

        if (generator == null) generator = new StringGenerator();
        System.out.println("begin " + generator.i);

        generator.generate();

        System.out.println(generator.verify() ? "verified " + generator.i : "WRONG");
    }
}
