package systemtest.libraries;

import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.InputStream;
import java.io.OutputStream;
import java.net.URI;
import java.util.ArrayList;
import java.util.Collections;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.SplittableRandom;
import javax.tools.FileObject;
import javax.tools.ForwardingJavaFileManager;
import javax.tools.JavaCompiler;
import javax.tools.JavaFileManager;
import javax.tools.JavaFileObject;
import javax.tools.SimpleJavaFileObject;
import javax.tools.ToolProvider;

/**
 * Versions of a program's own classes, of which each round of the fuzz has another one: constants of an enum come in another order, and some more; components of a
 * record change their places, and come and go; fields move, to a superclass too, get another type, and come and go; a hash code is computed
 * in another way; a class is renamed. Made from their source as
 * they are needed; each version has a loader of its own.
 */
final class FuzzVersions {
    private static final int VERSIONS = 16;

    private final Version[] versions = new Version[VERSIONS];
    private final long seed;

    FuzzVersions(long seed) {
        this.seed = seed;
    }

    /** @param thing the name that the renamed class has */
    record Version(ClassLoader loader, FuzzApplication application, String thing) {}

    /** Every other time the same as before. */
    Version of(int round) {
        int v = new SplittableRandom(seed + round / 2 * 2).nextInt(VERSIONS);
        if (versions[v] == null) {
            versions[v] = compile(v);
        }
        return versions[v];
    }

    private static <T> List<T> shuffled(Random random, List<T> all) {
        List<T> some = new ArrayList<>(all);
        Collections.shuffle(some, random);
        return some;
    }

    private static Version compile(int v) {
        // Random itself begins alike for seeds that are next to each other.
        Random random = new Random(new SplittableRandom(v).nextLong());
        String thing = random.nextBoolean() ? "Thing" : "Named";
        Classes files = new Classes(ToolProvider.getSystemJavaCompiler());
        if (!files.compiler.getTask(null, files, null, List.of("-proc:none"), null, List.of(new Source(source(random, thing)))).call()) {
            throw new AssertionError("version " + v + " does not compile");
        }
        try {
            ClassLoader loader = new Loader(files.all);
            return new Version(loader, (FuzzApplication) loader.loadClass("app.Factory").getDeclaredConstructor().newInstance(), "app." + thing);
        } catch (ReflectiveOperationException e) {
            throw new AssertionError(e);
        }
    }

    private static String source(Random random, String thing) {
        List<String> constants = new ArrayList<>(List.of("RED", "GREEN { @Override int by() { return 2; } }", "BLUE", "WHITE { @Override int by() { return 3; } }", "BLACK"));
        List<String> components = new ArrayList<>(List.of("int x", "String name"));
        List<String> fields = new ArrayList<>(List.of(random.nextBoolean() ? "String text;" : "Object text;", "Colour colour;"));
        String inBase = "";
        if (random.nextBoolean()) {
            constants.add("MORE" + random.nextInt(3));
        }
        if (random.nextBoolean()) {
            components.add("long added");
        }
        if (random.nextBoolean()) {
            fields.add("java.util.List<Object> more;");
        }
        if (random.nextBoolean()) {
            fields.add("int number;");
        } else {
            inBase = "int number;";
        }
        String hash = List.of("31 * number + colour.hashCode()", "java.util.Objects.hash(text, number)", "number ^ 7").get(random.nextInt(3));
        components = shuffled(random, components);
        String arguments = String.join(", ", components.stream().map(c -> c.equals("int x") ? "n" : c.equals("String name") ? "\"p\" + n" : "0").toList());
        return """
            package app;
            enum Colour { %s; int by() { return 1; } }
            record Point(%s) { @Override public String toString() { return "point " + x; } }
            class Base { %s }
            class Item extends Base {
                %s
                @Override public boolean equals(Object o) { return o instanceof Item i && i.number == number && text.equals(i.text) && colour == i.colour; }
                @Override public int hashCode() { return %s; }
                @Override public String toString() { return "item " + number + text + colour.by(); }
            }
            record %s(int number) { @Override public String toString() { return "thing " + number; } }
            public class Factory implements systemtest.libraries.FuzzApplication {
                private static final Colour[] ALL = { Colour.RED, Colour.GREEN, Colour.BLUE, Colour.WHITE, Colour.BLACK };
                @Override public Enum<?>[] constants() { return ALL; }
                @Override public Object key(java.util.Random random) {
                    int n = random.nextInt(20);
                    switch (random.nextInt(4)) {
                        case 0: return ALL[n %% 5];
                        case 1: return new Point(%s);
                        case 2: { Item i = new Item(); i.number = n; i.text = "t" + n %% 3; i.colour = ALL[n %% 5]; return i; }
                        default: return new %s(n);
                    }
                }
            }
            """.formatted(String.join(", ", shuffled(random, constants)), String.join(", ", components), inBase, String.join(" ", shuffled(random, fields)), hash, thing, arguments, thing);
    }

    private static final class Source extends SimpleJavaFileObject {
        private final String text;

        Source(String text) {
            super(URI.create("string:///Factory.java"), Kind.SOURCE);
            this.text = text;
        }

        @Override
        public CharSequence getCharContent(boolean ignore) {
            return text;
        }
    }

    /** What the compiler makes, in memory. */
    private static final class Classes extends ForwardingJavaFileManager<JavaFileManager> {
        private final JavaCompiler compiler;
        private final Map<String, ByteArrayOutputStream> all = new HashMap<>();

        Classes(JavaCompiler compiler) {
            super(compiler.getStandardFileManager(null, null, null));
            this.compiler = compiler;
        }

        @Override
        public JavaFileObject getJavaFileForOutput(Location location, String name, JavaFileObject.Kind kind, FileObject sibling) {
            ByteArrayOutputStream bytes = new ByteArrayOutputStream();
            all.put(name, bytes);
            return new SimpleJavaFileObject(URI.create("bytes:///" + name.replace('.', '/') + ".class"), kind) {
                @Override
                public OutputStream openOutputStream() {
                    return bytes;
                }
            };
        }
    }

    private static final class Loader extends ClassLoader {
        private final Map<String, ByteArrayOutputStream> all;

        Loader(Map<String, ByteArrayOutputStream> all) {
            super(FuzzVersions.class.getClassLoader());
            this.all = all;
        }

        @Override
        public InputStream getResourceAsStream(String name) {
            ByteArrayOutputStream bytes = all.get(name.replace('/', '.').replaceAll("\\.class$", ""));
            return bytes == null ? super.getResourceAsStream(name) : new ByteArrayInputStream(bytes.toByteArray());
        }

        @Override
        protected Class<?> findClass(String name) throws ClassNotFoundException {
            ByteArrayOutputStream bytes = all.get(name);
            if (bytes == null) {
                throw new ClassNotFoundException(name);
            }
            return defineClass(name, bytes.toByteArray(), 0, bytes.size());
        }
    }
}
