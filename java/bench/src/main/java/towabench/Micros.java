package towabench;

import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

/** What single operations cost: each question in a JVM of its own. */
final class Micros {
    private final Settings settings;
    private final Report report;

    Micros(Settings settings, Report report) {
        this.settings = settings;
        this.report = report;
    }

    private List<String> agent(String... more) {
        List<String> options = new ArrayList<>(List.of("-javaagent:" + settings.agentJar()));
        options.addAll(List.of(more));
        return options;
    }

    /** Null if it failed; then the report says why. */
    private Child ask(String what, List<String> options, String main, Object... args) throws Exception {
        report.progress(what);
        Child c = Child.run(settings, options, "towabench.micro." + main, args);
        if (!c.ended()) {
            report.skip(what + ": " + c.failure());
            return null;
        }
        return c;
    }

    void stores() throws Exception {
        medium("ram", settings.ram(), "process");
        medium("file", settings.scratch(), "process");
        medium("power", settings.scratch(), "power");
        if (settings.dax() != null) {
            medium("dax", settings.dax(), "process");
        } else {
            report.skip("store_ns on dax: no --dax FOLDER was given");
        }
    }

    private void medium(String name, Path folder, String durability) throws Exception {
        Path pool = Settings.freshPool(folder);
        int operations = settings.quick() ? 100_000 : 500_000;
        try {
            Child c = ask("stores, " + name, agent("-Xmx2g"), "StoreCost", pool, durability, operations);
            if (c == null) {
                return;
            }
            for (String[] s : c.lines("store")) {
                report.map("store_ns", name).put(s[0], Double.parseDouble(s[1]));
                if (name.equals("ram")) {
                    report.map("store_ns", "plain").put(s[0], Double.parseDouble(s[2]));
                }
            }
        } finally {
            Files.deleteIfExists(pool);
        }
    }

    void reads() throws Exception {
        Map<String, List<double[]>> durable = new LinkedHashMap<>();
        Map<String, List<double[]>> neither = new LinkedHashMap<>();
        int machines = settings.quick() ? 4 : 12;
        for (int i = 0; i < machines; i++) {
            // Either structure in turn; and as often neither.
            reads(i % 2 == 0 ? "first" : "second", durable);
            reads("none", neither);
        }
        for (String name : durable.keySet()) {
            Map<String, Object> kind = report.map("read_ratio", name);
            String[] names = {"ratio", "low", "high", "durable_ns", "plain_ns"};
            for (int i = 0; i < names.length; i++) {
                int at = i == 1 || i == 2 ? 0 : i;
                List<Double> all = durable.get(name).stream().map(f -> f[at]).toList();
                kind.put(names[i], i == 1 ? Stats.least(all) : i == 2 ? Stats.range(all).get(1) : Stats.median(all));
            }
            List<Double> control = neither.getOrDefault(name, List.of()).stream().map(f -> f[0]).toList();
            kind.put("neither_ratio", Stats.median(control));
            kind.put("neither_range", Stats.range(control));
        }
    }

    private void reads(String which, Map<String, List<double[]>> found) throws Exception {
        Path pool = settings.freshPool();
        try {
            Child c = ask("reads, durable: " + which, agent("-Xmx1g"), "ReadCost", pool, settings.quick() ? 50 : 100, which);
            if (c == null) {
                return;
            }
            for (String[] r : c.lines("read")) {
                double[] figures = java.util.Arrays.stream(r).skip(1).mapToDouble(Double::parseDouble).toArray();
                found.computeIfAbsent(r[0], k -> new ArrayList<>()).add(figures);
            }
        } finally {
            Files.deleteIfExists(pool);
        }
    }

    void recovery() throws Exception {
        useMemoryOnce(settings.quick() ? 2_000 : 7_500);
        List<Integer> strings = settings.quick() ? List.of(200_000, 600_000) : List.of(1_000_000, 2_000_000, 4_000_000);
        for (int count : strings) {
            restart("strings", count);
        }
        for (int count : settings.quick() ? List.of(1_000_000) : List.of(4_000_000, 16_000_000)) {
            restart("small", count);
        }
        onDemand(strings.get(strings.size() - 1));
    }

    /** The host of a virtual machine takes its time for memory that is used for the first time: as much as will be needed, heaps and pools, is used before. */
    private void useMemoryOnce(long mb) throws Exception {
        long all = Math.min(mb, Machine.memoryAvailableMb() - 1000);
        if (all > 0) {
            report.progress("using " + all + " MiB of memory once");
            Child.run(settings, List.of("-Xms" + all + "m", "-Xmx" + all + "m", "-XX:+UseParallelGC", "-XX:+AlwaysPreTouch"), "towabench.micro.Restart", "plain", "small", 2);
        }
    }

    /** The strings in parts that are loaded when they are asked for: how long it takes to open the pool, to have one part, and all. */
    private void onDemand(int count) throws Exception {
        long heapMb = 800 + count / 1000L;
        String what = "recovery on demand of " + count + " strings";
        if (heapMb + count / 2000L > Machine.memoryAvailableMb() - 1000) {
            report.skip(what + ": needs more memory than is free");
            return;
        }
        Path pool = settings.freshPool();
        String heap = "-Xmx" + heapMb + "m";
        try {
            report.progress(what + ", filling");
            Child fill = Child.run(settings, agent(heap), "towabench.micro.Restart", "fill", pool, "parts", count);
            if (fill.lines("filled").isEmpty()) {
                report.skip(what + ": filling: " + fill.failure());
                return;
            }
            List<double[]> opened = new ArrayList<>();
            List<double[]> loaded = new ArrayList<>();
            for (int i = 0; i < (settings.quick() ? 1 : 5); i++) {
                Child c = ask(what, agent(heap, "-Xms" + heapMb + "m"), "Restart", "open", pool);
                if (c == null || !c.lines("check").get(0)[0].equals("true")) {
                    report.skip(what + ": WRONG DATA");
                    return;
                }
                opened.add(figures(c, "restart"));
                loaded.add(figures(c, "on_demand"));
            }
            Map<String, Object> row = new LinkedHashMap<>();
            row.put("elements", count);
            row.put("mb", opened.get(0)[1] / 1e6);
            row.put("parts", loaded.get(0)[0]);
            row.put("open_ms", Stats.median(opened.stream().map(f -> f[2] * 1e3).toList()));
            row.put("recovery_ms", Stats.median(opened.stream().map(f -> f[3] * 1e3).toList()));
            row.put("first_part_ms", Stats.median(loaded.stream().map(f -> f[1] * 1e3).toList()));
            row.put("all_seconds", Stats.median(loaded.stream().map(f -> f[2]).toList()));
            report.add("on_demand", row);
        } finally {
            Files.deleteIfExists(pool);
        }
    }

    private static double[] figures(Child c, String line) {
        return java.util.Arrays.stream(c.lines(line).get(0)).mapToDouble(Double::parseDouble).toArray();
    }

    private void restart(String kind, int count) throws Exception {
        long heapMb = kind.equals("strings") ? 800 + count / 1000L : 800 + count / 9000L;
        long needed = heapMb + (kind.equals("strings") ? count / 2000L : count / 12000L);
        if (needed > Machine.memoryAvailableMb() - 1000) {
            report.skip("recovery of " + count + " " + kind + ": needs " + needed + " MiB of memory, " + Machine.memoryAvailableMb() + " are free");
            return;
        }
        Path pool = settings.freshPool();
        String heap = "-Xmx" + heapMb + "m";
        try {
            report.progress("recovery, " + count + " " + kind + ", filling");
            Child fill = Child.run(settings, agent(heap), "towabench.micro.Restart", "fill", pool, kind, count);
            if (fill.lines("filled").isEmpty()) {
                report.skip("recovery of " + count + " " + kind + ": filling: " + fill.failure());
                return;
            }
            List<double[]> found = new ArrayList<>();
            List<Double> plain = new ArrayList<>();
            String what = "recovery, " + count + " " + kind;
            for (int i = 0; i < (settings.quick() ? 1 : 3); i++) {
                Child c = ask(what + ", opening", agent(heap, "-Xms" + heapMb + "m"), "Restart", "open", pool);
                Child p = ask(what + ", without Towa", List.of(heap, "-Xms" + heapMb + "m"), "Restart", "plain", kind, count);
                if (c == null || p == null) {
                    return;
                }
                plain.add(p.figure("plain"));
                if (!c.lines("check").get(0)[0].equals("true")) {
                    report.skip("recovery of " + count + " " + kind + ": WRONG DATA");
                }
                found.add(figures(c, "restart"));
            }
            Map<String, Object> row = new LinkedHashMap<>();
            row.put("kind", kind);
            row.put("elements", count);
            String[] names = {"objects", "mb", "open_seconds", "seconds", "gc_seconds", "gcs", "open_cpu_seconds"};
            for (int i = 0; i < names.length; i++) {
                int at = i;
                row.put(names[i], Stats.median(found.stream().map(f -> f[at] / (at == 1 ? 1e6 : 1)).toList()));
            }
            row.put("seconds_range", Stats.range(found.stream().map(f -> f[3]).toList()));
            row.put("seconds_per_gb", Report.figure(row, "seconds") / Report.figure(row, "mb") * 1000);
            row.put("seconds_per_gb_without_gc", (Report.figure(row, "seconds") - Report.figure(row, "gc_seconds")) / Report.figure(row, "mb") * 1000);
            row.put("plain_seconds_per_gb", Stats.median(plain) / Report.figure(row, "mb") * 1000);
            row.put("fill_seconds", Double.parseDouble(fill.lines("filled").get(0)[0]));
            report.add("recovery", row);
        } finally {
            Files.deleteIfExists(pool);
        }
    }

    void startup() throws Exception {
        int times = settings.quick() ? 5 : 15;
        List<Double> plain = new ArrayList<>();
        List<Double> agent = new ArrayList<>();
        List<Double> open = new ArrayList<>();
        for (int i = 0; i < times; i++) {
            report.progress("start-up, " + (i + 1) + " of " + times);
            plain.add(Child.run(settings, List.of("-Xshare:auto"), "towabench.micro.Hello").seconds * 1e3);
            agent.add(Child.run(settings, agent("-Xshare:auto"), "towabench.micro.Hello").seconds * 1e3);
            if (i % 2 == 0) {
                Path pool = settings.freshPool();
                open.add(Child.run(settings, agent(), "towabench.micro.Hello", pool).figure("opened"));
                Files.deleteIfExists(pool);
            }
        }
        Map<String, Object> s = report.map("startup_ms");
        s.put("plain", Stats.median(plain));
        s.put("agent", Stats.median(agent));
        s.put("added", Stats.median(agent) - Stats.median(plain));
        s.put("plain_least", Stats.least(plain));
        s.put("agent_least", Stats.least(agent));
        s.put("first_open", Stats.median(open));
        s.put("first_open_least", Stats.least(open));
    }

    void space() throws Exception {
        Path pool = settings.freshPool();
        try {
            Child c = ask("space", agent("-Xmx2g"), "Space", pool, settings.quick() ? 100_000 : 400_000);
            if (c == null) {
                return;
            }
            for (String[] s : c.lines("space")) {
                Map<String, Object> kind = report.map("bytes_per_object", s[0]);
                kind.put("pool", Double.parseDouble(s[2]));
                kind.put("heap", Double.parseDouble(s[3]));
                kind.put("objects", Double.parseDouble(s[1]));
            }
        } finally {
            Files.deleteIfExists(pool);
        }
    }

    /** The same domain and operations with both; the figures are from {@code towabench.programs.big.Beside}. */
    void eclipse() throws Exception {
        if (!towabench.programs.Program.isThere("beside")) {
            report.skip("eclipsestore: built without the Maven profile `programs`");
            return;
        }
        Path folder = Files.createTempDirectory(settings.scratch(), "eclipsestore");
        Path pool = Settings.freshPool(settings.scratch());
        int map = settings.quick() ? 50_000 : 200_000;
        int restart = settings.quick() ? 150_000 : 600_000;
        List<String> opens = List.of("-Xmx3g", "--add-exports=java.base/jdk.internal.misc=ALL-UNNAMED", "--add-opens=java.base/java.util=ALL-UNNAMED",
            "--add-opens=java.base/java.lang=ALL-UNNAMED");
        try {
            for (String step : List.of("work", "restart")) {
                beside("eclipsestore", step, opens, folder, map, restart);
                beside("towa", step, agent("-Xmx3g"), pool, map, restart);
            }
        } finally {
            Files.deleteIfExists(pool);
            try (java.util.stream.Stream<Path> files = Files.walk(folder)) {
                files.sorted(java.util.Comparator.reverseOrder()).forEach(f -> f.toFile().delete());
            }
        }
    }

    private void beside(String side, String step, List<String> options, Path where, int map, int restart) throws Exception {
        report.progress("beside EclipseStore: " + side + ", " + step);
        Child c = Child.run(settings, options, "towabench.programs.big.Beside", side, step, where, map, restart);
        if (!c.ended()) {
            report.skip("eclipsestore: " + side + ", " + step + ": " + c.failure());
            return;
        }
        for (String[] f : c.lines("figure")) {
            Map<String, Object> operation = report.map("eclipsestore", f[0]);
            operation.put(side, Double.parseDouble(f[1]));
            operation.put("unit", f[2]);
        }
    }
}
