package towabench;

import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

/** What must hold, what was measured, and whether it was met. */
final class Targets {
    private Targets() {}

    static void judge(Report r) {
        List<Map<String, Object>> none = r.rows("none_durable");
        atMost(r, "nothing durable: overhead on average, by the clock", "%", 1, mean(none, "overhead_pct"));
        atMost(r, "nothing durable: overhead on average, processor time", "%", 1, mean(none, "overhead_cpu_pct"));
        atMost(r, "nothing durable: overhead on average, cycles", "%", 1, mean(none, "overhead_cycles_pct"));
        for (Map<String, Object> row : none) {
            boolean counted = !Double.isNaN(Report.figure(row, "overhead_pool_open_cycles_pct"));
            atMost(r, "pool open, small graph elsewhere: " + row.get("program") + (counted ? ", cycles" : ", processor time"), "%", 5,
                Report.figure(row, counted ? "overhead_pool_open_cycles_pct" : "overhead_pool_open_cpu_pct"));
        }
        for (Map<String, Object> row : r.rows("all_durable")) {
            boolean right = Boolean.TRUE.equals(row.get("result_right")) && Report.figure(row, "verify_differences") == 0;
            add(r, "every static field a root: " + row.get("program"), "right result, verify() empty",
                Boolean.TRUE.equals(row.get("result_right")) ? "right, " + (long) Report.figure(row, "verify_differences") + " differences" : "not right", right);
        }
        for (Map.Entry<String, Object> e : r.map("read_ratio").entrySet()) {
            double ratio = Report.figure(r.map("read_ratio", e.getKey()), "ratio");
            add(r, "read of a durable object, " + e.getKey(), "1.00x (+-2 %)", number(ratio) + "x", Math.abs(ratio - 1) <= 0.02);
        }
        for (String kind : List.of("strings", "small")) {
            Map<String, Object> last = null;
            for (Map<String, Object> row : r.rows("recovery")) {
                last = kind.equals(row.get("kind")) ? row : last;
            }
            String what = "recovery, " + (kind.equals("strings") ? "the thesis' strings" : "32-byte objects");
            double most = kind.equals("strings") ? 0.5 : 1.5;
            atMost(r, what, "s/GB", most, last == null ? Double.NaN : Report.figure(last, "seconds_per_gb"));
            atMost(r, what + ", without the collector's pauses", "s/GB", most, last == null ? Double.NaN : Report.figure(last, "seconds_per_gb_without_gc"));
        }
        atMost(r, "start-up: the agent adds", "ms", 250, Report.figure(r.map("startup_ms"), "added"));
        atMost(r, "first Towa.open", "ms", 1000, Report.figure(r.map("startup_ms"), "first_open"));
    }

    private static double mean(List<Map<String, Object>> rows, String key) {
        return Stats.mean(rows.stream().map(row -> Report.figure(row, key)).toList());
    }

    private static void atMost(Report r, String name, String unit, double most, double measured) {
        if (Double.isNaN(measured)) {
            add(r, name, "<= " + number(most) + " " + unit, "-", null);
        } else {
            add(r, name, "<= " + number(most) + " " + unit, number(measured) + " " + unit, measured <= most);
        }
    }

    private static void add(Report r, String name, String target, String measured, Boolean met) {
        Map<String, Object> row = new LinkedHashMap<>();
        row.put("name", name);
        row.put("target", target);
        row.put("measured", measured);
        row.put("verdict", met == null ? "not measured" : met ? "met" : "MISSED");
        r.add("targets", row);
    }

    /** In as many digits as tell something. */
    static String number(double v) {
        double a = Math.abs(v);
        if (Double.isNaN(v)) {
            return "-";
        }
        if (a >= 1e6) {
            return String.format("%.2fM", v / 1e6);
        }
        return a >= 1e5 ? String.format("%.0fk", v / 1e3) : a >= 100 ? String.format("%.0f", v) : a >= 10 ? String.format("%.1f", v)
            : a >= 0.1 ? String.format("%.2f", v) : a == 0 ? "0" : String.format("%.4f", v);
    }
}
