package towabench;

import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.TimeUnit;

/** Another JVM: started, waited for, and what it said. Lines that open with {@code @} are figures, see {@link #lines}. */
public final class Child {
    private final List<String> output;
    /** Exit status; -1: ran past its time and was killed. */
    public final int status;
    public final double seconds;

    private Child(List<String> output, int status, double seconds) {
        this.output = output;
        this.status = status;
        this.seconds = seconds;
    }

    /** Runs {@code mainClass} on the class path of this JVM. */
    public static Child run(Settings settings, List<String> options, String mainClass, Object... args) throws IOException, InterruptedException {
        List<String> command = new ArrayList<>(List.of(Path.of(System.getProperty("java.home"), "bin", "java").toString()));
        command.addAll(options);
        command.addAll(List.of("-cp", settings.classPath(), mainClass));
        for (Object arg : args) {
            command.add(arg.toString());
        }
        // Into a file: a reading thread would take processor time from what is measured.
        Path log = Files.createTempFile(settings.scratch(), "child", ".log");
        long began = System.nanoTime();
        Process p = new ProcessBuilder(command).redirectErrorStream(true).redirectOutput(log.toFile()).directory(settings.scratch().toFile()).start();
        try {
            boolean ended = p.waitFor(settings.patience().toSeconds(), TimeUnit.SECONDS);
            double seconds = (System.nanoTime() - began) / 1e9;
            if (!ended) {
                p.destroyForcibly().waitFor();
            }
            List<String> lines = new String(Files.readAllBytes(log), StandardCharsets.UTF_8).lines().toList();
            return new Child(lines, ended ? p.exitValue() : -1, seconds);
        } finally {
            p.destroyForcibly();
            Files.deleteIfExists(log);
        }
    }

    /** The words of each line {@code @key word word...}, without the key. */
    public List<String[]> lines(String key) {
        List<String[]> found = new ArrayList<>();
        for (String line : output) {
            if (line.startsWith("@" + key + " ") || line.equals("@" + key)) {
                found.add(line.substring(Math.min(line.length(), key.length() + 2)).split(" "));
            }
        }
        return found;
    }

    /** The rest of each such line, whole. */
    public List<String> texts(String key) {
        return output.stream().filter(l -> l.startsWith("@" + key + " ")).map(l -> l.substring(key.length() + 2)).toList();
    }

    /** The one figure {@code @key figure}; not a number if there is none. */
    public double figure(String key) {
        List<String[]> found = lines(key);
        return found.isEmpty() ? Double.NaN : Double.parseDouble(found.get(0)[0]);
    }

    public boolean ended() {
        return status == 0 && !lines("end").isEmpty();
    }

    /** Why it did not end well, in one line: the exception, or the last words. */
    public String failure() {
        if (status == -1) {
            return "ran past its time" + (output.isEmpty() ? "" : "; last: " + output.get(output.size() - 1));
        }
        String cause = null;
        for (String line : output) {
            if (line.startsWith("Exception in thread") || line.startsWith("Caused by:") || line.contains("OutOfMemoryError") || line.startsWith("# ")) {
                cause = line;
            }
        }
        String last = output.isEmpty() ? "said nothing" : output.get(output.size() - 1);
        return "exit status " + status + ": " + (cause == null ? last : cause.strip());
    }

    public List<String> output() {
        return output;
    }
}
