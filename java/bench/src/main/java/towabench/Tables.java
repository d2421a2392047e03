package towabench;

import static towabench.Targets.number;

import java.util.ArrayList;
import java.util.List;
import java.util.Map;

/** The report's tables, once for the terminal and for the page. */
final class Tables {
    /** One table: its first row is the head. */
    record Table(String title, String text, List<List<String>> rows) {}

    private Tables() {}

    static Table none(Report r) {
        List<List<String>> t = start("program", "plain ms", "agent %", "range", "processor time %", "quartiles", "cycles %", "range", "instructions %", "pool open %", "range", "processor time %", "quartiles", "cycles %", "range", "instructions %", "first iteration ms", "with agent", "thesis (Fig. 7.1)");
        for (Map<String, Object> row : r.rows("none_durable")) {
            t.add(List.of(Report.text(row, "program"), n(row, "plain_ms"), n(row, "overhead_pct"), range(row, "overhead_range_pct"),
                n(row, "overhead_cpu_pct"), range(row, "overhead_cpu_quartiles_pct"), n(row, "overhead_cycles_pct"),
                range(row, "overhead_cycles_range_pct"), n(row, "overhead_instructions_pct"), n(row, "overhead_pool_open_pct"), range(row, "overhead_pool_open_range_pct"),
                n(row, "overhead_pool_open_cpu_pct"), range(row, "overhead_pool_open_cpu_quartiles_pct"),
                n(row, "overhead_pool_open_cycles_pct"), range(row, "overhead_pool_open_cycles_range_pct"), n(row, "overhead_pool_open_instructions_pct"), n(row, "plain_first_ms"), n(row, "agent_first_ms"),
                "5.2 % on average"));
        }
        return new Table("Nothing durable",
            "Overhead of the warm iterations over the same JDK without the agent, in %, by the clock, by processor time and by the processor's counters in user mode (ratio of medians; they say less "
                + "of what else the machine did); with a pool open, a durable map of 1,000 orders changes five times a "
                + "second beside the program. The first iteration holds loading and weaving of the program's classes. The thesis' figure is without a JIT compiler.", t);
    }

    static Table all(Report r) {
        List<List<String>> t = start("program", "overhead %", "processor %", "replication", "NVM writes", "collector", "weaving", "replicas/s", "stores/s", "objects", "pool MiB",
            "skipped", "result", "differences", "first iteration ms", "thesis: replicas/s", "stores/s");
        for (Map<String, Object> row : r.rows("all_durable")) {
            String[] thesis = Thesis.of(Report.text(row, "program"));
            t.add(List.of(Report.text(row, "program"), n(row, "overhead_pct"), n(row, "overhead_cpu_pct"), share(row, "share_replication"), share(row, "share_nvm_writes"),
                share(row, "share_collector"), share(row, "share_weaving"), n(row, "replicas_per_s"), n(row, "stores_per_s"), n(row, "objects"),
                number(Report.figure(row, "pool_bytes") / (1 << 20)), n(row, "skipped"), Boolean.TRUE.equals(row.get("result_right")) ? "right" : "NOT RIGHT",
                n(row, "verify_differences"), n(row, "first_ms"), thesis[0], thesis[1]));
        }
        return new Table("Every static field a durable root",
            "From the program's first instruction on. Shares of processor samples of the warm iterations, by cause. Skipped: references to what cannot be durable, left out. "
                + "Differences: durable objects that do not equal their replica at the end. The pool is in memory. The thesis' figures (Table 7.2) are of the DaCapo program of that name, without a JIT compiler.", t);
    }

    static Table stores(Report r) {
        List<List<String>> t = new ArrayList<>();
        List<String> media = new ArrayList<>(r.map("store_ns").keySet());
        if (media.contains("plain")) {
            media.remove("plain");
            media.add(0, "plain");
        }
        List<String> head = new ArrayList<>(List.of("operation"));
        head.addAll(media);
        t.add(head);
        if (!media.isEmpty()) {
            for (String operation : r.map("store_ns", media.get(0)).keySet()) {
                List<String> row = new ArrayList<>(List.of(operation.replace('_', ' ')));
                media.forEach(m -> row.add(n(r.map("store_ns", m), operation)));
                t.add(row);
            }
        }
        return new Table("One store, in ns",
            "To a durable object, by medium; plain: to one that is not, in the same JVM. ram: a file in memory; file: on a disk, process-safe; power: on a disk, power-safe by commits.", t);
    }

    static Table reads(Report r) {
        List<List<String>> t = start("read", "durable / plain", "range", "neither durable", "range", "durable ns", "plain ns");
        for (String kind : r.map("read_ratio").keySet()) {
            Map<String, Object> row = r.map("read_ratio", kind);
            t.add(List.of(kind.replace('_', ' '), String.format("%.3f", Report.figure(row, "ratio")), String.format("%.3f - %.3f", Report.figure(row, "low"), Report.figure(row, "high")),
                String.format("%.3f", Report.figure(row, "neither_ratio")), range(row, "neither_range"), n(row, "durable_ns"), n(row, "plain_ns")));
        }
        return new Table("Reads", "The same compiled code on two structures that were built alike, side by side, in one JVM; one of them is durable. Medians and ranges over several JVMs; beside them the same "
            + "where neither is durable: how far where things lie in memory decides.", t);
    }

    static Table recovery(Report r) {
        List<List<String>> t = start("what", "elements", "objects", "MB", "recovery s", "range", "of it GC s", "s/GB", "without GC", "made anew", "Towa.open s", "its processor s", "thesis s/GB", "without GC");
        for (Map<String, Object> row : r.rows("recovery")) {
            boolean strings = "strings".equals(row.get("kind"));
            t.add(List.of(Report.text(row, "kind"), n(row, "elements"), n(row, "objects"), n(row, "mb"), n(row, "seconds"), range(row, "seconds_range"), n(row, "gc_seconds"),
                n(row, "seconds_per_gb"), n(row, "seconds_per_gb_without_gc"), n(row, "plain_seconds_per_gb"), n(row, "open_seconds"), n(row, "open_cpu_seconds"), strings ? "4.18" : "-", strings ? "3.46" : "-"));
        }
        return new Table("Recovery", "A process that filled a pool is killed; another opens it. Bytes are those of the pool; the page cache is warm. Made anew: "
            + "as many such objects, made by two threads of a new JVM without Towa, for each GB of the pool.", t);
    }

    static Table onDemand(Report r) {
        List<List<String>> t = start("strings", "parts", "MB", "Towa.open ms", "of it recovery ms", "one part ms", "all parts s");
        for (Map<String, Object> row : r.rows("on_demand")) {
            t.add(List.of(n(row, "elements"), n(row, "parts"), n(row, "mb"), n(row, "open_ms"), n(row, "recovery_ms"), n(row, "first_part_ms"), n(row, "all_seconds")));
        }
        return new Table("Recovery on demand", "The same strings in parts, each behind an OnDemand: the pool is opened, one part asked for, then all, one after the other.", t);
    }

    static Table startup(Report r) {
        List<List<String>> t = start("what", "ms", "least");
        Map<String, Object> s = r.map("startup_ms");
        if (!s.isEmpty()) {
            t.add(List.of("hello world, from start to end", n(s, "plain"), n(s, "plain_least")));
            t.add(List.of("the same with the agent", n(s, "agent"), n(s, "agent_least")));
            t.add(List.of("the agent adds", n(s, "added"), number(Report.figure(s, "agent_least") - Report.figure(s, "plain_least"))));
            t.add(List.of("first Towa.open, a new pool", n(s, "first_open"), n(s, "first_open_least")));
        }
        return new Table("Starting", "", t);
    }

    static Table space(Report r) {
        List<List<String>> t = start("kind", "pool bytes", "heap bytes beyond the object");
        for (String kind : r.map("bytes_per_object").keySet()) {
            Map<String, Object> row = r.map("bytes_per_object", kind);
            t.add(List.of(kind.replace('_', ' '), n(row, "pool"), n(row, "heap")));
        }
        return new Table("What a durable object takes", "For each durable object of the structure; a string is two objects.", t);
    }

    static Table eclipse(Report r) {
        List<List<String>> t = start("operation", "EclipseStore", "Towa", "unit", "times");
        for (String operation : r.map("eclipsestore").keySet()) {
            Map<String, Object> row = r.map("eclipsestore", operation);
            t.add(List.of(operation.replace('_', ' '), n(row, "eclipsestore"), n(row, "towa"), Report.text(row, "unit"), number(Report.figure(row, "eclipsestore") / Report.figure(row, "towa"))));
        }
        return new Table("Beside EclipseStore 2.1.3",
            "The same classes and operations, files on the same disk, neither waits for the device. EclipseStore must be told what to store: store(order), store(map).", t);
    }

    static Table targets(Report r) {
        List<List<String>> t = start("what", "must", "measured", "");
        for (Map<String, Object> row : r.rows("targets")) {
            t.add(List.of(Report.text(row, "name"), Report.text(row, "target"), Report.text(row, "measured"), Report.text(row, "verdict")));
        }
        return new Table("Targets", "Figures by the clock are worth as much as the machine was idle: see its load.", t);
    }

    static List<Table> parts(Report r) {
        return List.of(none(r), all(r), stores(r), reads(r), recovery(r), onDemand(r), startup(r), space(r), eclipse(r));
    }

    /** For the terminal. */
    static String text(Table t) {
        StringBuilder out = new StringBuilder(t.title()).append('\n');
        int[] width = new int[t.rows().get(0).size()];
        for (List<String> row : t.rows()) {
            for (int i = 0; i < row.size(); i++) {
                width[i] = Math.max(width[i], row.get(i).length());
            }
        }
        for (List<String> row : t.rows()) {
            for (int i = 0; i < row.size(); i++) {
                String pad = " ".repeat(width[i] - row.get(i).length());
                out.append(i == 0 ? "  " + row.get(i) + pad : "  " + pad + row.get(i));
            }
            out.append('\n');
        }
        return out.append('\n').toString();
    }

    private static List<List<String>> start(String... head) {
        List<List<String>> t = new ArrayList<>();
        t.add(List.of(head));
        return t;
    }

    private static String n(Map<String, Object> row, String key) {
        return number(Report.figure(row, key));
    }

    private static String share(Map<String, Object> row, String key) {
        double v = Report.figure(row, key);
        return Double.isNaN(v) ? "-" : String.format("%.1f %%", v * 100);
    }

    private static String range(Map<String, Object> row, String key) {
        return row.get(key) instanceof List<?> l && l.get(0) instanceof Double a && l.get(1) instanceof Double b ? number(a) + " - " + number(b) : "-";
    }
}
