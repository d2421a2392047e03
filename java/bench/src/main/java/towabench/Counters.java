package towabench;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.concurrent.TimeUnit;

/**
 * The processor's own counters for this process and all its threads, through {@code perf stat}, where that is there and allowed: cycles and instructions in user
 * mode. Unlike the clock they do not count what others did on the machine meanwhile, though what shares a core still slows each cycle's work.
 */
final class Counters {
    private final Process perf;
    private final Path out;

    private Counters(Process perf, Path out) {
        this.perf = perf;
        this.out = out;
    }

    /** Begins to count; null if it cannot. */
    static Counters begin(Path scratch) throws InterruptedException {
        try {
            Path out = Files.createTempFile(scratch, "perf", ".csv");
            Process p = new ProcessBuilder("perf", "stat", "-x,", "-e", "cycles:u,instructions:u", "-o", out.toString(), "-p", Long.toString(ProcessHandle.current().pid()))
                .redirectErrorStream(true).redirectOutput(ProcessBuilder.Redirect.DISCARD).start();
            // It ends at once if it may not.
            return p.waitFor(300, TimeUnit.MILLISECONDS) ? null : new Counters(p, out);
        } catch (IOException e) {
            return null;
        }
    }

    /** Stops and prints {@code @counters cycles instructions}. */
    void end() throws IOException, InterruptedException {
        // As Ctrl-C does: it writes what it has.
        new ProcessBuilder("kill", "-INT", Long.toString(perf.pid())).start().waitFor();
        if (!perf.waitFor(5, TimeUnit.SECONDS)) {
            perf.destroyForcibly();
            return;
        }
        double cycles = Double.NaN;
        double instructions = Double.NaN;
        for (String line : Files.readAllLines(out)) {
            String[] f = line.split(",");
            if (f.length > 2 && f[0].matches("\\d+")) {
                cycles = f[2].startsWith("cycles") ? Double.parseDouble(f[0]) : cycles;
                instructions = f[2].startsWith("instructions") ? Double.parseDouble(f[0]) : instructions;
            }
        }
        Files.deleteIfExists(out);
        System.out.println("@counters " + cycles + " " + instructions);
    }
}
