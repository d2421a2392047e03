package io.towa.explain;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.towa.DurableRoot;
import java.io.ObjectInputStream;
import java.io.OutputStream;
import java.io.Serializable;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.jar.JarEntry;
import java.util.jar.JarOutputStream;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

/** What is printed, and with which exit status. */
class ExplainTest {
    private static final String HERE = "io.towa.explain.ExplainTest$";
    private static boolean initialised;

    static class Base {
        transient int[] content;
    }

    @SuppressWarnings("serial")
    static class Written extends Base implements Serializable {
        OutputStream log;

        private void readObject(ObjectInputStream in) {}
    }

    static class Plain {
        static final boolean RUN = mark();
        int a;

        private static boolean mark() {
            initialised = true;
            return true;
        }
    }

    static class Roots {
        @DurableRoot
        Object instance;
        @DurableRoot
        static final Object FINAL = "";
        @DurableRoot
        static int number;
    }

    private final StringBuilder out = new StringBuilder();
    private final StringBuilder err = new StringBuilder();

    private String run(int status, String... args) {
        out.setLength(0);
        err.setLength(0);
        assertEquals(status, Explain.run(args, out, err), out + "" + err);
        assertEquals(status > 1, err.length() > 0);
        if (status > 1) {
            assertTrue(err.toString().startsWith("towa: ") && err.indexOf("\n") == err.length() - 1, err.toString());
            assertEquals("", out.toString());
        }
        return (status > 1 ? err : out).toString();
    }

    private static void lines(String text, String... wanted) {
        for (String w : wanted) {
            assertTrue(text.lines().anyMatch(l -> l.equals(w)), w + "\nin\n" + text);
        }
    }

    @Test
    void eachFieldWithItsFateAndWhy() {
        lines(run(1, "explain", "shop.Order", HERE + "Written"), "shop.Order: kept",
            "  kept              long id",
            "  resolved at load  java.lang.Thread$State state: by the constant's name",
            "  left out          java.lang.Thread worker: transient, in a class without a serial form of its own",
            "  left out          java.lang.Object cache: @NotDurable",
            "  kept              java.lang.Runnable job: by the class of the object in it; a lambda or hidden class cannot be found again by name; use a named class",
            "  kept              java.util.Map parts: by the class of the object in it",
            "  kept              root java.util.List all: by the class of the object in it",
            "  refused           constant shop.Order NONE: it is the constant shop.Order#NONE, and has a state that its name does not tell (field id): "
                + "after a restart the program's constant would be another object; make the field final, or refer to it from a durable root",
            "  resolved at load  constant shop.Order$Price FREE: as the constant shop.Order#FREE",
            "  kept              int[] " + HERE + "Base.content: transient, but data: " + HERE + "Written.readObject writes the serial form",
            "  refused           java.io.OutputStream log: java.io.OutputStream stands for something outside the program's data, or holds it; leave the field out "
                + "(transient, or @NotDurable)",
            "2 classes, 2 refused");
    }

    @Test
    void noCodeOfTheClassesRuns() {
        lines(run(0, "explain", HERE + "Plain"), "  kept              int a", "1 class, 0 refused");
        assertFalse(initialised);
    }

    @Test
    void rootsThatAreNone() {
        String text = run(1, "explain", HERE + "Roots");
        assertTrue(text.contains("a root is static") && text.contains("not final"), text);
        lines(text, "1 class, 3 refused");
    }

    @Test
    void asJson() {
        assertEquals("{\"classes\":[{\"class\":\"" + HERE + "Plain\",\"fate\":\"kept\",\"why\":\"\",\"fields\":[{\"kind\":\"field\",\"name\":\"a\",\"type\":\"int\","
            + "\"fate\":\"kept\",\"why\":\"\"}]}],\"refused\":0}\n", run(0, "explain", "--json", HERE + "Plain"));
        StringBuilder s = new StringBuilder();
        Report.quote("a\"b\\c\n\u202e", s);
        assertEquals("\"a\\\"b\\\\c\\u000a\\u202e\"", s.toString());
    }

    @Test
    void aJarAndAFolder(@TempDir Path dir) throws Exception {
        Path jar = dir.resolve("shop.jar");
        String file = HERE.replace('.', '/') + "Plain.class";
        byte[] bytes = ExplainTest.class.getResourceAsStream("/" + file).readAllBytes();
        try (JarOutputStream to = new JarOutputStream(Files.newOutputStream(jar))) {
            for (String name : new String[] {file, "META-INF/versions/25/" + file, "module-info.class"}) {
                to.putNextEntry(new JarEntry(name));
                to.write(bytes);
                to.closeEntry();
            }
        }
        lines(run(0, "explain", jar.toString()), HERE + "Plain: kept", "1 class, 0 refused");
        Path folder = Files.createDirectories(dir.resolve("classes"));
        Files.createDirectories(folder.resolve(file).getParent());
        Files.write(folder.resolve(file), bytes);
        lines(run(0, "explain", folder.toString()), HERE + "Plain: kept", "1 class, 0 refused");
        lines(run(0, "explain", "-cp", dir + "/*", HERE + "Plain"), "1 class, 0 refused");
    }

    @Test
    void whatCannotBeAnswered() {
        assertTrue(run(0, "--help").startsWith("usage: "));
        assertTrue(run(2).contains("--help"));
        assertTrue(run(2, "frob").contains("frob"));
        assertTrue(run(2, "explain", "--frob").contains("--frob"));
        assertTrue(run(2, "explain").contains("name a class"));
        assertTrue(run(2, "explain", "a.B", "-cp").contains("-cp needs"));
        assertTrue(run(5, "explain", "a.B").contains("no class a.B"));
        assertTrue(run(5, "explain", "absent.jar").contains("absent.jar"));
        assertTrue(run(5, "explain", "-cp", "absent/*", "a.B").contains("absent"));
    }
}
