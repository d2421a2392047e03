package towabench;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.Comparator;
import java.util.List;
import java.util.Map;
import java.util.stream.Stream;

/**
 * The benchmarks of the Java door: {@code make bench-java [QUICK=1]}. Its options: {@link Arguments#HELP}.
 */
public final class Bench {
    private Bench() {}

    public static void main(String[] args) throws Exception {
        if (List.of(args).contains("--help")) {
            System.out.print(Arguments.help());
            return;
        }
        Arguments a;
        try {
            a = Arguments.parse(args);
        } catch (IllegalArgumentException e) {
            System.err.println("bench-java: " + e.getMessage());
            System.exit(2);
            return;
        }
        Path scratch = Files.createTempDirectory(Path.of(System.getProperty("towabench.scratch", "/var/tmp")), "towa-bench");
        Path memory = Files.isDirectory(Path.of("/dev/shm")) ? Path.of("/dev/shm") : scratch;
        Path ram = Files.createTempDirectory(memory, "towa-bench");
        try {
            boolean quick = a.quick();
            int rounds = a.rounds() > 0 ? a.rounds() : quick ? 1 : 4;
            int iterations = a.iterations() > 0 ? a.iterations() : quick ? 6 : 16;
            Settings s = new Settings(quick, a.only(), a.programs(), a.modes(), Path.of(a.agent()).toAbsolutePath().toString(), absolute(System.getProperty("java.class.path")),
                scratch, ram, a.dax(), a.sources().toAbsolutePath(), quick ? 4 : 10, rounds, iterations, Duration.ofSeconds(quick ? 120 : 600));
            Report report = run(s, true);
            write(report, a.json(), a.html());
        } finally {
            delete(ram);
            delete(scratch);
        }
    }

    /** Everything that {@code s} asks for. */
    public static Report run(Settings s, boolean talks) throws Exception {
        Report r = new Report(talks);
        r.map("settings").putAll(Map.of("quick", s.quick(), "rounds", s.rounds(), "iterations", s.iterations(), "size", s.size(), "heap", "-Xms1g -Xmx3g, G1"));
        Micros micros = new Micros(s, r);
        if (s.wants("startup")) {
            micros.startup();
        }
        if (s.wants("stores")) {
            micros.stores();
        }
        if (s.wants("reads")) {
            micros.reads();
        }
        if (s.wants("space")) {
            micros.space();
        }
        if (s.wants("recovery")) {
            micros.recovery();
        }
        if (s.wants("eclipsestore")) {
            micros.eclipse();
        }
        if (s.wants("programs")) {
            new Programs(s, r).run();
        }
        r.finish();
        Targets.judge(r);
        return r;
    }

    /** To the files that are asked for, and to the terminal. */
    static void write(Report r, Path json, Path html) throws IOException {
        if (json != null) {
            Files.writeString(json, Json.of(r.root()));
        }
        if (html != null) {
            Files.writeString(html, Page.of(r));
        }
        Map<String, Object> m = r.map("machine");
        System.out.printf("towa for Java   %s   %s, %s cores, %s MiB, Linux %s, %s, commit %s   load %s to %s   %.0f s%n%n", r.root().get("date"), m.get("cpu"), m.get("cores"),
            m.get("memory_mb"), m.get("kernel"), m.get("jdk"), m.get("commit"), m.get("load_at_start"), m.get("load_at_end"), Report.figure(r.root(), "took_s"));
        for (Tables.Table t : Tables.parts(r)) {
            if (t.rows().size() > 1) {
                System.out.print(Tables.text(t));
            }
        }
        for (Map<String, Object> row : r.rows("all_durable")) {
            ((List<?>) row.get("problems")).forEach(p -> System.out.println(row.get("program") + ": " + p));
        }
        ((List<?>) r.root().get("skipped")).forEach(why -> System.out.println("not measured: " + why));
        System.out.print("\n" + Tables.text(Tables.targets(r)));
    }

    private static String absolute(String classPath) {
        StringBuilder out = new StringBuilder();
        for (String part : classPath.split(java.io.File.pathSeparator)) {
            out.append(out.isEmpty() ? "" : java.io.File.pathSeparator).append(Path.of(part).toAbsolutePath());
        }
        return out.toString();
    }

    static void delete(Path folder) throws IOException {
        try (Stream<Path> files = Files.walk(folder)) {
            files.sorted(Comparator.reverseOrder()).forEach(f -> f.toFile().delete());
        }
    }
}
