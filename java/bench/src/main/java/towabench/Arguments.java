package towabench;

import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import towabench.programs.Program;

/**
 * The command line, checked before anything is measured.
 *
 * @param rounds 0: as many as belong to full or quick; so are iterations
 */
record Arguments(boolean quick, Path json, Path html, Path dax, String agent, Path sources, int rounds, int iterations, List<String> only, List<String> programs,
    List<Mode> modes) {
    static final List<String> PARTS = List.of("startup", "stores", "reads", "space", "recovery", "eclipsestore", "programs");

    static final String HELP = """
        Measures Towa for Java: what it costs programs that use it, and those that do not.

        usage: scripts/bench-java [OPTION...]        or  make bench-java [QUICK=1] [ARGS='OPTION...']

          --quick              smaller sizes and fewer rounds: a first look (all: half an hour)
          --only PART,...      these parts alone: %s
          --programs NAME,...  these programs alone, of part `programs`: %s
          --modes MODE,...     the programs in these modes alone (plain, agent, pool, all); in plain always
          --rounds N           rounds of the programs (4; quick: 1); the medians are shown
          --iterations N       of a program in each JVM (16; quick: 6); the first half warms up
          --dax FOLDER         a folder on a DAX mount: stores are measured there, too
          --json FILE          all that was measured
          --html FILE          the same to look at, in one file
          --help               this

        The table at the end tells which targets were met. Other work on the machine shows in the figures. Exit status: 0 measured (targets met or
        not), 2 wrong arguments, 1 else.
        """;

    /** @throws IllegalArgumentException says which argument is wrong, and what it may be */
    static Arguments parse(String[] args) {
        boolean quick = false;
        Path json = null;
        Path html = null;
        Path dax = null;
        String agent = System.getProperty("towabench.agent");
        Path sources = Path.of(".");
        int rounds = 0;
        int iterations = 0;
        List<String> modes = List.of();
        List<String> only = List.of();
        List<String> programs = List.of();
        for (int i = 0; i < args.length; i++) {
            switch (args[i]) {
                case "--quick" -> quick = true;
                case "--json" -> json = writable(args, i++);
                case "--html" -> html = writable(args, i++);
                case "--dax" -> dax = folder(args, i++);
                case "--agent" -> agent = value(args, i++);
                case "--sources" -> sources = folder(args, i++);
                case "--rounds" -> rounds = number(args, i++);
                case "--iterations" -> iterations = number(args, i++);
                case "--modes" -> modes = names(args, i++, Arrays.stream(Mode.values()).map(Mode::name).toList());
                case "--only" -> only = names(args, i++, PARTS);
                case "--programs" -> programs = names(args, i++, known());
                default -> throw new IllegalArgumentException("unknown option " + args[i] + "; --help tells which there are");
            }
        }
        if (agent == null || !Files.exists(Path.of(agent))) {
            throw new IllegalArgumentException("--agent must name towa.jar, not " + agent);
        }
        return new Arguments(quick, json, html, dax, agent, sources, rounds, iterations, only, programs, modes.stream().map(Mode::valueOf).toList());
    }

    static String help() {
        return HELP.formatted(String.join(", ", PARTS), String.join(", ", known()));
    }

    private static List<String> known() {
        List<String> all = new ArrayList<>(Program.SMALL);
        all.addAll(Program.BIG);
        return all;
    }

    private static String value(String[] args, int i) {
        if (i + 1 == args.length) {
            throw new IllegalArgumentException(args[i] + " needs a value; --help tells which");
        }
        return args[i + 1];
    }

    private static int number(String[] args, int i) {
        String v = value(args, i);
        if (!v.matches("[1-9][0-9]{0,3}")) {
            throw new IllegalArgumentException(args[i] + " must be a number from 1 to 9999, not " + v);
        }
        return Integer.parseInt(v);
    }

    private static Path folder(String[] args, int i) {
        Path p = Path.of(value(args, i));
        if (!Files.isDirectory(p)) {
            throw new IllegalArgumentException(args[i] + ": there is no folder " + p);
        }
        return p;
    }

    /** Now, rather than when all is measured. */
    private static Path writable(String[] args, int i) {
        Path p = Path.of(value(args, i)).toAbsolutePath();
        if (!Files.isDirectory(p.getParent()) || Files.isDirectory(p) || !Files.isWritable(Files.exists(p) ? p : p.getParent())) {
            throw new IllegalArgumentException(args[i] + ": " + p + " cannot be written");
        }
        return p;
    }

    private static List<String> names(String[] args, int i, List<String> known) {
        List<String> names = Arrays.asList(value(args, i).split(","));
        for (String name : names) {
            if (!known.contains(name)) {
                throw new IllegalArgumentException(args[i] + ": there is no " + name + "; there are " + String.join(", ", known));
            }
        }
        return names;
    }
}
