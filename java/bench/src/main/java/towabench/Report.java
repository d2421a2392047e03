package towabench;

import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

/**
 * What a run found, in the order and with the names of the JSON; a figure that was not taken is null, and {@code skipped} says why.
 *
 * <pre>
 *   schema, benchmark, date, took_s, machine, settings
 *   none_durable  [{program, overhead_pct, overhead_pool_open_pct, ...}]
 *   all_durable   [{program, overhead_pct, share_replication, share_nvm_writes, replicas_per_s, stores_per_s, ...}]
 *   store_ns      medium -> operation -> ns         plain: the same to an object that is not durable
 *   read_ratio    kind -> {ratio, low, high, ...}
 *   recovery      [{kind, objects, mb, seconds, gc_seconds, ...}]
 *   on_demand     [{elements, parts, mb, open_ms, first_part_ms, all_seconds, ...}]
 *   startup_ms    {plain, agent, added, first_open}
 *   bytes_per_object  kind -> {pool, heap}
 *   eclipsestore  {operation -> {eclipsestore, towa, unit}}
 *   targets       [{name, target, measured, verdict}]
 *   skipped       [text]
 * </pre>
 */
public final class Report {
    private final Map<String, Object> root = new LinkedHashMap<>();
    private final boolean talks;
    private final long began = System.nanoTime();

    public Report(boolean talks) {
        this.talks = talks;
        root.put("schema", 1);
        root.put("benchmark", "java");
        root.put("date", java.time.Instant.now().truncatedTo(java.time.temporal.ChronoUnit.SECONDS).toString());
        root.put("took_s", Double.NaN);
        root.put("machine", Machine.here());
        root.put("settings", new LinkedHashMap<String, Object>());
        for (String list : List.of("none_durable", "all_durable")) {
            root.put(list, new ArrayList<Object>());
        }
        for (String map : List.of("store_ns", "read_ratio")) {
            root.put(map, new LinkedHashMap<String, Object>());
        }
        root.put("recovery", new ArrayList<Object>());
        root.put("on_demand", new ArrayList<Object>());
        for (String map : List.of("startup_ms", "bytes_per_object", "eclipsestore")) {
            root.put(map, new LinkedHashMap<String, Object>());
        }
        root.put("targets", new ArrayList<Object>());
        root.put("skipped", new ArrayList<Object>());
    }

    public Map<String, Object> root() {
        return root;
    }

    @SuppressWarnings("unchecked")
    public Map<String, Object> map(String name) {
        return (Map<String, Object>) root.get(name);
    }

    /** A map of maps. */
    @SuppressWarnings("unchecked")
    public Map<String, Object> map(String name, String inner) {
        return (Map<String, Object>) map(name).computeIfAbsent(inner, k -> new LinkedHashMap<String, Object>());
    }

    @SuppressWarnings("unchecked")
    public List<Map<String, Object>> rows(String name) {
        return (List<Map<String, Object>>) root.get(name);
    }

    public void add(String list, Map<String, Object> row) {
        rows(list).add(row);
    }

    @SuppressWarnings("unchecked")
    public void skip(String why) {
        ((List<Object>) root.get("skipped")).add(why);
        progress("SKIPPED " + why);
    }

    public void progress(String what) {
        if (talks) {
            System.err.printf("%5.0f s  %s%n", (System.nanoTime() - began) / 1e9, what);
        }
    }

    void finish() {
        root.put("took_s", (System.nanoTime() - began) / 1e9);
        map("machine").put("load_at_end", Machine.load());
    }

    /** A figure of a row or map; not a number if it was not taken. */
    public static double figure(Map<String, Object> row, String key) {
        return row.get(key) instanceof Number n ? n.doubleValue() : Double.NaN;
    }

    public static String text(Map<String, Object> row, String key) {
        return String.valueOf(row.get(key));
    }
}
