package towa.weave;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.towa.DurableRoot;
import io.towa.Towa;
import io.towa.TowaOptions;
import java.io.InputStream;
import java.lang.instrument.ClassFileTransformer;
import java.lang.instrument.Instrumentation;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.security.ProtectionDomain;
import java.util.List;
import java.util.function.Supplier;
import java.util.jar.Attributes;
import java.util.jar.JarOutputStream;
import java.util.jar.Manifest;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

/** Another agent makes classes from their files, whatever this library's made of them before: stores to durable objects are seen all the same. */
class OtherAgentsTest {
    @TempDir
    Path folder;

    /** Changes the text {@code plain} in the classes of {@link Program} to {@code other}, and ignores what it is given. */
    public static final class Second implements ClassFileTransformer {
        public static Instrumentation instrumentation;

        private Second() {}

        public static void premain(String options, Instrumentation inst) {
            instrumentation = inst;
            inst.addTransformer(new Second(), true);
        }

        @Override
        public byte[] transform(ClassLoader loader, String name, Class<?> redefined, ProtectionDomain domain, byte[] given) {
            return name == null || !name.startsWith("towa/weave/OtherAgentsTest$Program$") ? null : changed(name);
        }

        private static byte[] changed(String name) {
            try (InputStream in = ClassLoader.getSystemResourceAsStream(name + ".class")) {
                return new String(in.readAllBytes(), StandardCharsets.ISO_8859_1).replace("plain", "other").getBytes(StandardCharsets.ISO_8859_1);
            } catch (java.io.IOException e) {
                throw new java.io.UncheckedIOException(e);
            }
        }
    }

    static final class Program {
        @DurableRoot static Object[] root;

        private Program() {}

        static class Account {
            long balance;
            String mark;

            void add() {
                balance++;
                mark = "plain";
            }
        }

        public static void main(String[] args) throws Exception {
            Towa.open(Path.of(args[0]), TowaOptions.DEFAULT.withCapacity(64 << 20));
            if (root == null) {
                root = new Object[] {new Account(), new Supplier<String>() {
                    long asked;

                    @Override
                    public String get() {
                        return "plain" + ++asked;
                    }
                }};
            }
            for (int round = 0; round < 2; round++) {
                ((Account) root[0]).add();
                ((Supplier<?>) root[1]).get();
                if (Second.instrumentation != null) {
                    Second.instrumentation.retransformClasses(Account.class, root[1].getClass());
                }
            }
            System.out.println(((Account) root[0]).balance + " " + ((Account) root[0]).mark + " " + ((Supplier<?>) root[1]).get() + " " + Towa.verify());
            // A class that was woven twice would mirror each store twice.
            long before = Towa.metrics().stores();
            ((Account) root[0]).add();
            System.out.println("stores " + (Towa.metrics().stores() - before));
        }
    }

    /** Runs a copy of {@link Program} whose classes have no files: a loader makes them, with another text in place of {@code plain}. */
    static final class Generated extends ClassLoader {
        private final String text;

        private Generated(String text) {
            super(Generated.class.getClassLoader());
            this.text = text;
        }

        @Override
        protected Class<?> findClass(String name) throws ClassNotFoundException {
            try (InputStream in = ClassLoader.getSystemResourceAsStream(name.replace("Progr_2", "Program").replace('.', '/') + ".class")) {
                byte[] file = new String(in.readAllBytes(), StandardCharsets.ISO_8859_1).replace("$Program", "$Progr_2").replace("plain", text)
                    .getBytes(StandardCharsets.ISO_8859_1);
                return defineClass(name, file, 0, file.length);
            } catch (java.io.IOException e) {
                throw new ClassNotFoundException(name, e);
            }
        }

        public static void main(String[] args) throws Exception {
            Generated loader = new Generated(args[1]);
            Thread.currentThread().setContextClassLoader(loader);
            var main = loader.loadClass("towa.weave.OtherAgentsTest$Progr_2").getMethod("main", String[].class);
            main.setAccessible(true);
            main.invoke(null, (Object) args);
        }
    }

    @Test
    void anonymousClassesWithoutFilesAreComparedAsTheyAreLoaded() throws Exception {
        Path file = Fixture.file("generated");
        int[] status = new int[1];
        String[] expected = {"2 plain plain3 []", "5 plain plain6 []", "OtherAgentsTest$Progr_2$1, of which the pool has instances, is not there", "8 plain plain9 []"};
        for (int i = 0; i < expected.length; i++) {
            String out = AgentOptionsTest.run(status, Generated.class.getName(), "", file.toString(), i == 2 ? "other" : "plain");
            assertTrue((i == 2) == (status[0] != 0) && out.contains(expected[i]), i + ": " + out);
        }
        file.toFile().delete();
    }

    private String jar() throws Exception {
        Path jar = folder.resolve("second.jar");
        Manifest m = new Manifest();
        m.getMainAttributes().put(Attributes.Name.MANIFEST_VERSION, "1.0");
        m.getMainAttributes().putValue("Premain-Class", Second.class.getName());
        m.getMainAttributes().putValue("Can-Retransform-Classes", "true");
        new JarOutputStream(Files.newOutputStream(jar), m).close();
        return "-javaagent:" + jar;
    }

    @Test
    void storesAreSeenBeforeAndAfterAnotherAgent() throws Exception {
        Path file = Fixture.file("agents");
        String second = jar();
        // Each run finds the anonymous class of the run before by its code, although the other agent changes it.
        List<List<List<String>>> runs = List.of(List.of(List.of(), List.of(second)), List.of(List.of(second), List.of()), List.of(List.of(), List.of()),
            List.of(List.of(second), List.of()), List.of(List.of(), List.of(second)));
        for (int i = 0; i < runs.size(); i++) {
            int[] status = new int[1];
            String out = AgentOptionsTest.runWith(runs.get(i).get(0), runs.get(i).get(1), status, Program.class.getName(), "", file.toString());
            assertEquals(0, status[0], out);
            boolean changed = !(runs.get(i).get(0).isEmpty() && runs.get(i).get(1).isEmpty());
            String word = changed ? "other" : "plain";
            assertTrue(out.contains(3 * i + 2 + " " + word + " " + word + 3 * (i + 1) + " []\nstores 2\n"), i + ": " + out);
        }
        file.toFile().delete();
    }

    @Test
    void aNewPoolOfAProgramWhoseClassesAnAgentBeforeItChanges() throws Exception {
        Path file = Fixture.file("agents");
        int[] status = new int[1];
        String first = AgentOptionsTest.runWith(List.of(jar()), List.of(), status, Program.class.getName(), "", file.toString());
        assertTrue(status[0] == 0 && first.contains("2 other other3 []"), first);
        String then = AgentOptionsTest.run(status, Program.class.getName(), "", file.toString());
        assertTrue(status[0] == 0 && then.contains("5 plain plain6 []"), then);
        file.toFile().delete();
    }
}
