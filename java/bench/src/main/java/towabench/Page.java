package towabench;

import java.io.IOException;
import java.io.InputStream;
import java.io.UncheckedIOException;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;

/**
 * The report as one page that needs nothing else, in the looks of the other doors' (their style sheet is packed into this module).
 *
 * <p>What must hold: no script, no request; every drawn figure also stands in a table; what was not measured is said.
 */
final class Page {
    private Page() {}

    static String of(Report r) {
        StringBuilder body = new StringBuilder();
        head(body, r);
        section(body, Tables.targets(r), "");
        section(body, Tables.none(r), none(r));
        section(body, Tables.all(r), all(r));
        section(body, Tables.stores(r), "");
        section(body, Tables.reads(r), "");
        section(body, Tables.recovery(r), recovery(r));
        section(body, Tables.onDemand(r), "");
        section(body, Tables.startup(r), "");
        section(body, Tables.space(r), "");
        section(body, Tables.eclipse(r), "");
        notes(body, r);
        return "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\"><title>towa for Java, " + r.root().get("date")
            + "</title><meta name=\"viewport\" content=\"width=device-width\"><style>" + style() + "</style></head><body><main>" + body + "</main></body></html>\n";
    }

    private static String style() {
        try (InputStream css = Page.class.getResourceAsStream("/html.css")) {
            return new String(css.readAllBytes(), StandardCharsets.UTF_8);
        } catch (IOException e) {
            throw new UncheckedIOException(e);
        }
    }

    private static void head(StringBuilder body, Report r) {
        Map<String, Object> m = r.map("machine");
        Map<String, Object> s = r.map("settings");
        body.append("<h1>towa for Java</h1><p class=\"text\">").append(r.root().get("date")).append(" · ").append(Plot.escape(Report.text(m, "cpu"))).append(" · ")
            .append(m.get("cores")).append(" cores · ").append(m.get("memory_mb")).append(" MiB · Linux ").append(Plot.escape(Report.text(m, "kernel"))).append(" · ")
            .append(Plot.escape(Report.text(m, "jdk"))).append(" · commit ").append(Plot.escape(Report.text(m, "commit"))).append("<br>")
            .append(Boolean.TRUE.equals(s.get("quick")) ? "quick" : "full").append(" run, ").append(String.format("%.0f", Report.figure(r.root(), "took_s"))).append(" s; ")
            .append(s.get("rounds")).append(" rounds of ").append(s.get("iterations")).append(" iterations; load average ").append(m.get("load_at_start"))
            .append(" at the start, ").append(m.get("load_at_end")).append(" at the end</p>");
    }

    private static void section(StringBuilder body, Tables.Table t, String plots) {
        body.append("<section><h2>").append(Plot.escape(t.title())).append("</h2><p class=\"text\">").append(Plot.escape(t.text())).append("</p>").append(plots);
        if (t.rows().size() < 2) {
            body.append("<p class=\"absent\">not measured in this run</p></section>");
            return;
        }
        body.append("<div class=\"scroll\"><table><thead>");
        for (int i = 0; i < t.rows().size(); i++) {
            String tag = i == 0 ? "th" : "td";
            body.append("<tr>");
            for (String cell : t.rows().get(i)) {
                String verdict = switch (cell) {
                    case "met" -> " class=\"met\"";
                    case "MISSED", "NOT RIGHT" -> " class=\"missed\"";
                    case "not measured" -> " class=\"absent\"";
                    default -> "";
                };
                body.append('<').append(tag).append(verdict).append('>').append(Plot.escape(cell)).append("</").append(tag).append('>');
            }
            body.append(i == 0 ? "</tr></thead><tbody>" : "</tr>");
        }
        body.append("</tbody></table></div></section>");
    }

    private static String figure(String caption, String svg) {
        return "<figure><figcaption>" + Plot.escape(caption) + "</figcaption>" + svg + "</figure>";
    }

    /** The thesis' Fig. 7.1: run time, that of the JDK as it is being 1. */
    private static String none(Report r) {
        List<Map<String, Object>> rows = r.rows("none_durable");
        if (rows.isEmpty()) {
            return "";
        }
        Plot plot = new Plot("run time over that without the agent", "times", 0, rows.stream().map(x -> Report.text(x, "program")).toList());
        plot.series("plain", "c-volatile", rows.stream().map(x -> 1.0).toList());
        plot.series("agent", "c-towa", rows.stream().map(x -> 1 + Report.figure(x, "overhead_cpu_pct") / 100).toList());
        plot.series("agent and a pool open", "c-control", rows.stream().map(x -> 1 + Report.figure(x, "overhead_pool_open_cpu_pct") / 100).toList());
        return figure("processor time of the warm iterations, that without the agent is 1 (the thesis' Fig. 7.1)", plot.svg());
    }

    /** The thesis' Fig. 7.2: the same by cause. */
    private static String all(Report r) {
        List<Map<String, Object>> rows = r.rows("all_durable");
        if (rows.isEmpty()) {
            return "";
        }
        Plot plot = new Plot("run time by cause", "times", 0, rows.stream().map(x -> Report.text(x, "program")).toList()).stacked();
        String[][] causes = {{"program", "c-volatile"}, {"replication", "c-control"}, {"nvm_writes", "c-towa"}, {"collector", "c-cpnvm"}, {"weaving", "c-other"}};
        for (String[] cause : causes) {
            List<Double> values = new ArrayList<>();
            for (Map<String, Object> row : rows) {
                values.add((1 + Report.figure(row, "overhead_cpu_pct") / 100) * Report.figure(row, "share_" + cause[0]));
            }
            plot.series(cause[0].replace('_', ' '), cause[1], values);
        }
        return figure("processor time of the warm iterations by cause, that without the agent is 1 (the thesis' Fig. 7.2)", plot.svg());
    }

    /** The thesis' Fig. 7.3: recovery by size. */
    private static String recovery(Report r) {
        List<Map<String, Object>> rows = r.rows("recovery");
        if (rows.isEmpty()) {
            return "";
        }
        Plot plot = new Plot("seconds of recovery", "s", 0,
            rows.stream().map(x -> Targets.number(Report.figure(x, "elements")) + " " + x.get("kind") + ", " + Targets.number(Report.figure(x, "mb")) + " MB").toList()).stacked();
        plot.series("garbage collection", "c-volatile", rows.stream().map(x -> Report.figure(x, "gc_seconds")).toList());
        plot.series("the rest", "c-towa", rows.stream().map(x -> Math.max(0, Report.figure(x, "seconds") - Report.figure(x, "gc_seconds"))).toList());
        return figure("recovery after SIGKILL (the thesis' Fig. 7.3)", plot.svg());
    }

    private static void notes(StringBuilder body, Report r) {
        List<String> notes = new ArrayList<>();
        for (Object skipped : (List<?>) r.root().get("skipped")) {
            notes.add("not measured: " + skipped);
        }
        for (Map<String, Object> row : r.rows("all_durable")) {
            for (Object problem : (List<?>) row.get("problems")) {
                notes.add(row.get("program") + ": " + problem);
            }
        }
        body.append("<section><h2>Notes</h2><ul>");
        notes.forEach(n -> body.append("<li>").append(Plot.escape(n)).append("</li>"));
        body.append("</ul></section>");
    }
}
