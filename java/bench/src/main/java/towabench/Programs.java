package towabench;

import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.EnumMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import towabench.programs.Program;

/**
 * The comparison of the modes, program by program: rounds of one fresh JVM for each mode, in turn, so that what else the machine does meets
 * all of them. A ratio is taken within a round; what is reported is the median of the rounds.
 */
final class Programs {
    /** What one JVM told. */
    private record Run(double firstMs, double warmMs, double warmCpuMs, double cycles, double instructions, String checksum, Child child) {}

    private final Settings settings;
    private final Report report;

    Programs(Settings settings, Report report) {
        this.settings = settings;
        this.report = report;
    }

    void run() throws Exception {
        List<String> names = new ArrayList<>(Program.SMALL);
        names.addAll(Program.BIG);
        for (String name : names) {
            if (!settings.programs().isEmpty() && !settings.programs().contains(name)) {
                continue;
            }
            if (!Program.isThere(name)) {
                report.skip(name + ": built without the Maven profile `programs`");
                continue;
            }
            one(name);
        }
        report.skip("avrora, sunflow: not on Maven Central under their projects' names");
    }

    private void one(String name) throws Exception {
        Map<Mode, List<Run>> runs = new EnumMap<>(Mode.class);
        List<String> problems = new ArrayList<>();
        for (int round = 0; round < settings.rounds(); round++) {
            for (Mode mode : Mode.values()) {
                // The last one takes longest and is not what a few per cent matter for.
                if (!settings.wants(mode) || mode == Mode.all && round >= Math.max(1, settings.rounds() / 2)) {
                    continue;
                }
                report.progress(name + ", " + mode + ", round " + (round + 1) + " of " + settings.rounds());
                Run run = start(name, mode, mode == Mode.all && settings.rounds() == 1 ? recording(name) : null, problems);
                if (run != null) {
                    runs.computeIfAbsent(mode, m -> new ArrayList<>()).add(run);
                }
            }
        }
        List<Run> plain = runs.getOrDefault(Mode.plain, List.of());
        if (plain.isEmpty()) {
            report.skip(name + ": does not run here even without the agent: " + problems);
            return;
        }
        String right = plain.get(0).checksum();
        for (Map.Entry<Mode, List<Run>> e : runs.entrySet()) {
            for (Run r : e.getValue()) {
                if (!r.checksum().equals(right)) {
                    problems.add(e.getKey() + ": result " + r.checksum() + " instead of " + right);
                }
            }
        }
        report.add("none_durable", none(name, runs));
        if (settings.wants(Mode.all)) {
            report.add("all_durable", all(name, runs, right, problems));
        }
    }

    private Map<String, Object> none(String name, Map<Mode, List<Run>> runs) {
        Map<String, Object> row = new LinkedHashMap<>();
        row.put("program", name);
        overhead(row, "overhead", runs, Mode.agent);
        overhead(row, "overhead_pool_open", runs, Mode.pool);
        row.put("plain_ms", Stats.median(each(runs, Mode.plain, Run::warmMs)));
        row.put("plain_first_ms", Stats.median(each(runs, Mode.plain, Run::firstMs)));
        row.put("agent_first_ms", Stats.median(each(runs, Mode.agent, Run::firstMs)));
        row.put("rounds", runs.get(Mode.plain).size());
        return row;
    }

    /**
     * {@code X_pct} by the clock, {@code X_cpu_pct} by processor time of the whole process; {@code X_cycles_pct} and {@code X_instructions_pct} by the processor's
     * counters for user mode, which say least about how busy the machine was: of these the ratio of medians, the JIT's choices differ from run to run. And ranges,
     * and quartiles of what is judged.
     */
    private static void overhead(Map<String, Object> row, String key, Map<Mode, List<Run>> runs, Mode mode) {
        List<Double> wall = ratios(runs, mode, Run::warmMs);
        List<Double> cpu = ratios(runs, mode, Run::warmCpuMs);
        row.put(key + "_pct", Stats.median(wall));
        row.put(key + "_range_pct", Stats.range(wall));
        row.put(key + "_cpu_pct", Stats.median(cpu));
        row.put(key + "_cpu_range_pct", Stats.range(cpu));
        row.put(key + "_cpu_quartiles_pct", Stats.quartiles(cpu));
        row.put(key + "_cycles_pct", ofMedians(runs, mode, Run::cycles));
        row.put(key + "_cycles_range_pct", Stats.range(ratios(runs, mode, Run::cycles)));
        row.put(key + "_instructions_pct", ofMedians(runs, mode, Run::instructions));
    }

    private static double ofMedians(Map<Mode, List<Run>> runs, Mode mode, java.util.function.ToDoubleFunction<Run> what) {
        return (Stats.median(each(runs, mode, what)) / Stats.median(each(runs, Mode.plain, what)) - 1) * 100;
    }

    private static List<Double> each(Map<Mode, List<Run>> runs, Mode mode, java.util.function.ToDoubleFunction<Run> what) {
        return runs.getOrDefault(mode, List.of()).stream().map(r -> what.applyAsDouble(r)).toList();
    }

    private static List<Double> ratios(Map<Mode, List<Run>> runs, Mode mode, java.util.function.ToDoubleFunction<Run> what) {
        List<Double> plain = each(runs, Mode.plain, what);
        List<Double> other = each(runs, mode, what);
        List<Double> found = new ArrayList<>();
        for (int i = 0; i < Math.min(plain.size(), other.size()); i++) {
            found.add((other.get(i) / plain.get(i) - 1) * 100);
        }
        return found;
    }

    private Map<String, Object> all(String name, Map<Mode, List<Run>> runs, String right, List<String> problems) throws Exception {
        Map<String, Object> row = new LinkedHashMap<>();
        row.put("program", name);
        List<Run> all = runs.getOrDefault(Mode.all, List.of());
        overhead(row, "overhead", runs, Mode.all);
        row.put("first_ms", Stats.median(each(runs, Mode.all, Run::firstMs)));
        Path recording = recording(name);
        Map<String, Double> profile = Map.of();
        if (!all.isEmpty() && settings.rounds() == 1) {
            // A first look: the one run was sampled.
            Path one = recording(name);
            if (Files.exists(one)) {
                profile = profile(one, all.get(0));
            }
            Files.deleteIfExists(one);
        } else if (!all.isEmpty()) {
            report.progress(name + ", all, sampled");
            Run sampled = start(name, Mode.all, recording, problems);
            if (sampled != null && Files.exists(recording)) {
                profile = profile(recording, sampled);
            }
            Files.deleteIfExists(recording);
        }
        for (String cause : Profile.CAUSES) {
            row.put("share_" + cause, profile.getOrDefault(cause, Double.NaN));
        }
        row.put("samples", profile.getOrDefault("samples", 0.0));
        String[] fields = {"objects", "pool_bytes", "replicas_per_s", "stores_per_s", "skipped", "collections"};
        for (int i = 0; i < fields.length; i++) {
            int at = i;
            row.put(fields[i], Stats.median(all.stream().map(r -> Double.parseDouble(r.child().lines("metrics").get(0)[at])).toList()));
        }
        boolean isRight = !all.isEmpty() && all.stream().allMatch(r -> r.checksum().equals(right));
        row.put("result_right", isRight);
        row.put("verify_differences", all.isEmpty() ? Double.NaN : all.stream().mapToDouble(r -> r.child().figure("verify")).max().orElse(0));
        row.put("unwoven_classes", all.isEmpty() ? Double.NaN : all.get(0).child().figure("unwoven"));
        all.stream().flatMap(r -> r.child().texts("problem").stream()).distinct().limit(8).forEach(p -> problems.add("all: " + p));
        row.put("problems", problems.stream().distinct().toList());
        return row;
    }

    /** Of the warm iterations alone. */
    private static Map<String, Double> profile(Path recording, Run run) throws java.io.IOException {
        return Profile.read(recording, Long.parseLong(run.child().lines("warm").get(0)[0]), Long.parseLong(run.child().lines("cool").get(0)[0]));
    }

    private Path recording(String name) {
        return settings.scratch().resolve(name + ".jfr");
    }

    private Run start(String name, Mode mode, Path recording, List<String> problems) throws Exception {
        List<String> options = new ArrayList<>(List.of(mode.options(settings.agentJar())));
        options.addAll(List.of("-Xms1g", "-Xmx3g", "-XX:+UseG1GC", "-Dtowabench.sources=" + settings.sources(), "--add-modules=jdk.incubator.vector"));
        if (recording != null) {
            options.add(Profile.option(recording));
        }
        Path pool = settings.freshPool();
        try {
            Child child = Child.run(settings, options, "towabench.Runner", name, mode, settings.iterations(), settings.size(), settings.scratch(), pool);
            List<String[]> iterations = child.lines("iteration");
            if (!child.ended() || iterations.size() != settings.iterations()) {
                problems.add(mode + ": " + child.failure());
                return null;
            }
            // Of processor time the mean: it is told in steps of 10 ms, a tenth of an iteration, and what others do shows little in it.
            List<Double> wall = new ArrayList<>();
            List<Double> cpu = new ArrayList<>();
            String sum = iterations.get(0)[3];
            for (int i = 0; i < iterations.size(); i++) {
                // The first half warms up.
                if (i >= iterations.size() / 2) {
                    wall.add(Double.parseDouble(iterations.get(i)[1]) / 1e6);
                    cpu.add(Double.parseDouble(iterations.get(i)[2]) / 1e6);
                }
                if (!iterations.get(i)[3].equals(sum)) {
                    problems.add(mode + ": iteration " + i + " gives " + iterations.get(i)[3] + " instead of " + sum);
                }
            }
            List<String[]> counters = child.lines("counters");
            double cycles = counters.isEmpty() ? Double.NaN : Double.parseDouble(counters.get(0)[0]);
            double instructions = counters.isEmpty() ? Double.NaN : Double.parseDouble(counters.get(0)[1]);
            return new Run(Double.parseDouble(iterations.get(0)[1]) / 1e6, Stats.median(wall), Stats.mean(cpu), cycles, instructions, sum, child);
        } finally {
            Files.deleteIfExists(pool);
        }
    }
}
