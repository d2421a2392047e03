package towabench;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNotNull;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.List;
import java.util.Map;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

/** Two programs in all modes, as small as they get; the rest of the module is not for `verify`. */
class BenchTest {
    @TempDir Path folder;

    private static Path agent() {
        Path jar = Path.of(System.getProperty("towabench.agent", "../towa/target/towa.jar")).toAbsolutePath();
        assertTrue(Files.exists(jar), jar + " is not there: build the module towa first");
        return jar;
    }

    @Test
    void programsGiveTheirOwnResultsInEveryMode() throws Exception {
        Settings s = new Settings(true, List.of("programs"), List.of("xalan", "h2"), List.of(), agent().toString(), System.getProperty("java.class.path"), folder, folder, null,
            Path.of(".").toAbsolutePath(), 1, 1, 2, Duration.ofSeconds(240));
        Report r = Bench.run(s, false);
        assertEquals(2, r.rows("none_durable").size(), "skipped: " + r.root().get("skipped"));
        for (Map<String, Object> row : r.rows("none_durable")) {
            for (String field : List.of("overhead_pct", "overhead_pool_open_pct", "plain_ms")) {
                assertFalse(Double.isNaN(Report.figure(row, field)), row.get("program") + "." + field);
            }
        }
        for (Map<String, Object> row : r.rows("all_durable")) {
            assertEquals(List.of(), row.get("problems"), "problems of " + row.get("program"));
            assertEquals(true, row.get("result_right"), row.toString());
            assertEquals(0.0, Report.figure(row, "verify_differences"), row.toString());
            assertTrue(Report.figure(row, "objects") > 100, "nothing became durable: " + row);
            for (String field : List.of("overhead_pct", "share_replication", "share_nvm_writes", "replicas_per_s", "stores_per_s")) {
                assertFalse(Double.isNaN(Report.figure(row, field)), row.get("program") + "." + field);
            }
        }
        writes(r);
    }

    private void writes(Report r) throws Exception {
        Path json = folder.resolve("report.json");
        Path html = folder.resolve("report.html");
        Bench.write(r, json, html);
        String text = Files.readString(json);
        for (String field : List.of("none_durable", "all_durable", "program", "overhead_pct", "overhead_pool_open_pct", "share_replication", "share_nvm_writes",
            "replicas_per_s", "stores_per_s", "read_ratio", "store_ns", "recovery", "startup_ms", "bytes_per_object", "eclipsestore", "targets")) {
            assertTrue(text.contains("\"" + field + "\": "), field + " is not in the JSON");
        }
        assertFalse(text.contains("NaN"), "JSON has no NaN");
        String page = Files.readString(html);
        for (String part : List.of("Targets", "Nothing durable", "Every static field a durable root", "<svg", "Notes")) {
            assertTrue(page.contains(part), part + " is not on the page");
        }
        for (String outside : List.of("http:", "https:", "<script", "url(", "NaN", "Infinity")) {
            assertFalse(page.contains(outside), "the page contains " + outside);
        }
    }

    @Test
    void aProgramThatFailsIsReportedAndNothingElse() throws Exception {
        Settings s = new Settings(true, List.of(), List.of(), List.of(), agent().toString(), System.getProperty("java.class.path"), folder, folder, null, folder, 1, 1, 1,
            Duration.ofSeconds(60));
        Child c = Child.run(s, List.of(), "towabench.Runner", "nosuch", Mode.plain, 1, 1, folder);
        assertFalse(c.ended());
        assertTrue(c.failure().contains("ClassNotFoundException"), c.failure());
        assertNotNull(c.output());
    }

    @Test
    void argumentsAreCheckedBeforeAnythingIsMeasured() {
        String agent = agent().toString();
        String json = folder.resolve("r.json").toString();
        Arguments a = Arguments.parse(new String[] {"--agent", agent, "--quick", "--only", "stores,reads", "--programs", "h2", "--rounds", "3", "--iterations", "40", "--modes",
            "agent,pool", "--json", json});
        assertEquals(List.of("stores", "reads"), a.only());
        assertEquals(3, a.rounds());
        assertEquals(40, a.iterations());
        assertEquals(List.of(Mode.agent, Mode.pool), a.modes());
        assertTrue(a.quick());
        String[][] wrong = {{"--fast"}, {"--rounds"}, {"--rounds", "0"}, {"--rounds", "many"}, {"--iterations", "0"}, {"--modes", "agent,none"}, {"--only", "store"}, {"--programs", "h2,doom"}, {"--json", "/proc/nonexistent/r.json"},
            {"--html", folder.toString()}, {"--dax", folder.resolve("none").toString()}, {"--agent", folder.resolve("none.jar").toString()}};
        for (String[] args : wrong) {
            String[] all = new String[args.length + 2];
            all[0] = "--agent";
            all[1] = agent;
            System.arraycopy(args, 0, all, 2, args.length);
            String why = assertThrows(IllegalArgumentException.class, () -> Arguments.parse(all), String.join(" ", args)).getMessage();
            assertTrue(why.contains(args[0]), why);
        }
        assertTrue(Arguments.help().contains("recovery") && Arguments.help().contains("xalan"));
    }
}
