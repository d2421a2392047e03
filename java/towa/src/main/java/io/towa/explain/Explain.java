package io.towa.explain;

import java.io.File;
import java.io.IOException;
import java.net.URL;
import java.net.URLClassLoader;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.TreeSet;
import java.util.jar.JarFile;
import java.util.stream.Stream;

/**
 * The program {@code java -jar towa.jar}. It loads the classes that it is asked about, and initialises none: no code of the program runs.
 *
 * <p>Exit status: 0 answered, and nothing is refused; 1 something is refused; 2 wrong usage; 5 no such class, jar or folder.
 */
public final class Explain {
    private static final String USAGE = """
        usage: java -jar towa.jar explain [--json] [-cp PATH] CLASS|JAR|FOLDER ...

        Says of each class what becomes of its objects when they are to be durable, field by field: kept, resolved at load (by name), left out, or refused,
        and why. The answers, and their words, are those of the agent. No code of the classes is run.

          CLASS, JAR, FOLDER  a class by its binary name (shop.Order, shop.Order$Line), or all classes of a jar or a folder of classes
          -cp PATH            where classes are found, as for java; jars and folders that are asked about need not be in it
          --json              one JSON document: {"classes": [{"class", "fate", "why", "fields": [{"kind", "name", "type", "fate", "why"}]}], "refused"}
          --help              this

        Exit status: 0 nothing is refused; 1 something is; 2 wrong usage; 5 no such class, jar or folder.
        """;
    private static final int REFUSED = 1;
    private static final int USE = 2;
    private static final int ABSENT = 5;

    private boolean json;
    private final List<Path> path = new ArrayList<>();
    private final List<String> asked = new ArrayList<>();

    /** A wrong usage, or what is not there. */
    private static final class Failure extends Exception {
        private static final long serialVersionUID = 1;
        final int status;

        Failure(int status, String message) {
            super(message);
            this.status = status;
        }
    }

    private Explain() {}

    /**
     * The program.
     *
     * @param args as the usage says
     */
    public static void main(String[] args) {
        System.exit(run(args, System.out, System.err));
    }

    static int run(String[] args, Appendable out, Appendable err) {
        try {
            if (List.of(args).contains("--help") || List.of(args).contains("-h")) {
                out.append(USAGE);
                return 0;
            }
            try {
                return new Explain().answer(args, out);
            } catch (Failure e) {
                err.append("towa: ").append(e.getMessage()).append('\n');
                return e.status;
            }
        } catch (IOException e) {
            throw new java.io.UncheckedIOException(e);
        }
    }

    private int answer(String[] args, Appendable out) throws Failure, IOException {
        parse(args);
        TreeSet<String> names = new TreeSet<>();
        for (String a : asked) {
            if (Files.exists(Path.of(a)) && (Files.isDirectory(Path.of(a)) || a.endsWith(".jar"))) {
                path.add(Path.of(a));
                names.addAll(classes(Path.of(a)));
            } else if (a.endsWith(".jar") || a.contains("/")) {
                throw new Failure(ABSENT, "no such jar or folder: " + a);
            } else {
                names.add(a);
            }
        }
        List<Report> reports = new ArrayList<>();
        try (URLClassLoader loader = new URLClassLoader(urls(), Explain.class.getClassLoader())) {
            for (String name : names) {
                reports.add(report(name, loader));
            }
        }
        int refused = 0;
        for (Report r : reports) {
            refused += r.refused();
        }
        print(reports, refused, out);
        return refused == 0 ? 0 : REFUSED;
    }

    private void parse(String[] args) throws Failure {
        if (args.length == 0 || !args[0].equals("explain")) {
            throw new Failure(USE, (args.length == 0 ? "nothing to do" : "unknown command \"" + args[0] + "\"") + "; java -jar towa.jar --help says what there is");
        }
        for (int i = 1; i < args.length; i++) {
            if (args[i].equals("--json")) {
                json = true;
            } else if (args[i].equals("-cp") || args[i].equals("--class-path") || args[i].equals("-classpath")) {
                if (++i == args.length) {
                    throw new Failure(USE, args[i - 1] + " needs a path");
                }
                add(args[i]);
            } else if (args[i].startsWith("-")) {
                throw new Failure(USE, "unknown option \"" + args[i] + "\"; java -jar towa.jar --help says what there is");
            } else {
                asked.add(args[i]);
            }
        }
        if (asked.isEmpty()) {
            throw new Failure(USE, "name a class, a jar or a folder of classes");
        }
    }

    /** A class path, with {@code folder/*} for its jars. */
    private void add(String classPath) throws Failure {
        for (String p : classPath.split(File.pathSeparator)) {
            boolean all = p.endsWith("/*") || p.equals("*");
            Path at = Path.of(all ? "./" + p.substring(0, p.length() - 1) : p);
            at = all && p.startsWith("/") ? Path.of(p.substring(0, p.length() - 1)) : at;
            if (!all) {
                path.add(at);
                continue;
            }
            try (Stream<Path> jars = Files.list(at)) {
                jars.filter(j -> j.toString().endsWith(".jar")).sorted().forEach(path::add);
            } catch (IOException e) {
                throw new Failure(ABSENT, "no such folder: " + p);
            }
        }
    }

    private URL[] urls() throws IOException {
        List<Path> all = path.isEmpty() ? List.of(Path.of(".")) : path;
        URL[] urls = new URL[all.size()];
        for (int i = 0; i < urls.length; i++) {
            urls[i] = all.get(i).toUri().toURL();
        }
        return urls;
    }

    /** The names of all classes in a jar or a folder. */
    private static List<String> classes(Path in) throws Failure {
        List<String> files = new ArrayList<>();
        if (Files.isDirectory(in)) {
            try (Stream<Path> all = Files.walk(in)) {
                all.forEach(p -> files.add(in.relativize(p).toString().replace(File.separatorChar, '/')));
            } catch (IOException e) {
                throw new Failure(ABSENT, in + " cannot be read: " + e);
            }
        } else {
            try (JarFile jar = new JarFile(in.toFile())) {
                jar.stream().forEach(e -> files.add(e.getName()));
            } catch (IOException e) {
                throw new Failure(ABSENT, in + " cannot be read: " + e);
            }
        }
        List<String> names = new ArrayList<>();
        for (String f : files) {
            if (f.endsWith(".class") && !f.startsWith("META-INF/") && !f.endsWith("module-info.class") && !f.endsWith("package-info.class")) {
                names.add(f.substring(0, f.length() - ".class".length()).replace('/', '.'));
            }
        }
        return names;
    }

    private static Report report(String name, ClassLoader loader) throws Failure {
        try {
            return Report.of(Class.forName(name, false, loader));
        } catch (ClassNotFoundException e) {
            throw new Failure(ABSENT, "no class " + name + " is found; name its jar or folder with -cp");
        } catch (LinkageError | TypeNotPresentException e) {
            throw new Failure(ABSENT, "class " + name + " cannot be loaded, for want of another (" + e + "); name that one's jar or folder with -cp");
        }
    }

    private void print(List<Report> reports, int refused, Appendable out) throws IOException {
        if (!json) {
            for (Report r : reports) {
                r.print(out);
            }
            out.append(reports.size() + (reports.size() == 1 ? " class, " : " classes, ") + refused + " refused\n");
            return;
        }
        StringBuilder s = new StringBuilder("{\"classes\":[");
        for (int i = 0; i < reports.size(); i++) {
            s.append(i == 0 ? "" : ",");
            reports.get(i).json(s);
        }
        out.append(s.append("],\"refused\":").append(refused).append("}\n"));
    }
}
