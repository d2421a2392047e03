package towabench;

import java.io.IOException;
import java.nio.file.Path;
import java.time.Instant;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import jdk.jfr.consumer.RecordedEvent;
import jdk.jfr.consumer.RecordedFrame;
import jdk.jfr.consumer.RecordingFile;

/**
 * Where the time of a run went, by samples of the JVM's own recorder: every frame of the stack counts, the cause nearest to its root
 * wins, so that what promotion calls is promotion's.
 */
final class Profile {
    /** Options of a JVM that is to be sampled. */
    static String option(Path file) {
        return "-XX:StartFlightRecording:filename=" + file + ",settings=none,+jdk.ExecutionSample#enabled=true,+jdk.ExecutionSample#period=10ms";
    }

    static final List<String> CAUSES = List.of("program", "replication", "nvm_writes", "collector", "weaving");

    private Profile() {}

    /** Share of the samples between two moments, by cause, and their number under {@code samples}. */
    static Map<String, Double> read(Path file, long fromMillis, long toMillis) throws IOException {
        Map<String, Double> counts = new LinkedHashMap<>();
        CAUSES.forEach(c -> counts.put(c, 0.0));
        Instant from = Instant.ofEpochMilli(fromMillis);
        Instant to = Instant.ofEpochMilli(toMillis);
        double all = 0;
        try (RecordingFile events = new RecordingFile(file)) {
            while (events.hasMoreEvents()) {
                RecordedEvent e = events.readEvent();
                if (e.getEventType().getName().equals("jdk.ExecutionSample") && e.getStackTrace() != null && !e.getStartTime().isBefore(from)
                    && !e.getStartTime().isAfter(to)) {
                    counts.merge(cause(e.getStackTrace().getFrames()), 1.0, Double::sum);
                    all++;
                }
            }
        }
        double n = all;
        counts.replaceAll((k, v) -> v / Math.max(1, n));
        counts.put("samples", n);
        return counts;
    }

    private static String cause(List<RecordedFrame> frames) {
        String found = "program";
        for (RecordedFrame f : frames) {
            String c = f.getMethod().getType().getName();
            if (!c.startsWith("io.towa.")) {
                continue;
            }
            if (c.startsWith("io.towa.agent.")) {
                return "weaving";
            }
            if (c.startsWith("io.towa.graph.Collector")) {
                return "collector";
            }
            found = found.equals("replication") || c.startsWith("io.towa.graph.Promotion") ? "replication" : "nvm_writes";
        }
        return found;
    }
}
