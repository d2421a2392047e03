package towabench.programs;

import java.nio.file.Path;
import java.util.List;

/**
 * A program from elsewhere, unmodified, and a fixed amount of real work for it.
 *
 * <p>Every iteration does the same work and gives the same checksum, in every mode: it is over the program's own results.
 */
public interface Program {
    /** What an iteration does not do again: input is made, a server started. {@code size} scales the work; 10 is about half a second of it. */
    void prepare(Path scratch, int size) throws Exception;

    long run() throws Exception;

    /** Stops the threads that the program started. */
    default void close() {}

    /** Names by which {@link #named} finds them, in the order of the tables. */
    List<String> SMALL = List.of("h2", "xalan", "http");
    List<String> BIG = List.of("luindex", "lusearch", "jython", "pmd", "fop");

    /** By name: a class that was compiled only with the profile {@code programs} is looked for, not linked to. */
    static Program named(String name) throws ReflectiveOperationException {
        return (Program) classOf(name).getDeclaredConstructor().newInstance();
    }

    static boolean isThere(String name) {
        try {
            classOf(name);
            return true;
        } catch (ClassNotFoundException e) {
            return false;
        }
    }

    private static Class<?> classOf(String name) throws ClassNotFoundException {
        String simple = Character.toUpperCase(name.charAt(0)) + name.substring(1);
        return Class.forName("towabench.programs." + (BIG.contains(name) || name.equals("beside") ? "big." : "") + simple, false, Program.class.getClassLoader());
    }
}
