package systemtest.harness;

import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.UncheckedIOException;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.TimeUnit;
import java.util.function.Predicate;

/**
 * A program under test in a Java machine of its own.
 *
 * <p>Its output, errors included, is kept line by line as it comes; what it printed before a kill is known after it. Whoever starts one closes it:
 * no machine outlives its test.
 */
public final class Machine implements AutoCloseable {
    /** The finished jar, and the jar of the examples. */
    public static final Path AGENT = Path.of(System.getProperty("agent.jar", "../towa/target/towa.jar")).toAbsolutePath().normalize();
    public static final Path EXAMPLES = Path.of(System.getProperty("examples.jar", "../examples/target/examples.jar")).toAbsolutePath().normalize();
    /** No program here needs nearly as long; one that hangs is a bug that must be seen. */
    private static final long PATIENCE_S = 120;

    private final String command;
    private final Process process;
    private final List<String> lines = new ArrayList<>();
    private final List<Long> came = new ArrayList<>();
    private final long started = System.nanoTime();
    private final Thread reader;
    private boolean ended;

    private Machine(List<String> command) throws IOException {
        this.command = String.join(" ", command);
        process = new ProcessBuilder(command).redirectErrorStream(true).start();
        reader = new Thread(this::read, "output of " + process.pid());
        reader.setDaemon(true);
        reader.start();
    }

    /** With the agent: {@code flags} for the machine, then main class and arguments. */
    public static Machine start(List<String> flags, String main, Object... arguments) throws IOException {
        List<String> all = new ArrayList<>(List.of("-javaagent:" + AGENT));
        all.addAll(flags);
        return startWithout(all, main, arguments);
    }

    /** Without the agent. */
    public static Machine startWithout(List<String> flags, String main, Object... arguments) throws IOException {
        return startOn(Path.of(System.getProperty("java.home")), flags, main, arguments);
    }

    /** With the Java of that home, and no agent but what {@code flags} name. */
    public static Machine startOn(Path home, List<String> flags, String main, Object... arguments) throws IOException {
        List<String> command = new ArrayList<>(List.of(home.resolve("bin/java").toString()));
        // Small machines: two run beside each other, and beside whatever else this computer does.
        if (flags.stream().noneMatch(f -> f.startsWith("-Xmx"))) {
            command.add("-Xmx256m");
        }
        command.addAll(List.of("-cp", EXAMPLES + ":" + System.getProperty("java.class.path")));
        command.addAll(flags);
        command.add(main);
        for (Object a : arguments) {
            command.add(a.toString());
        }
        return new Machine(command);
    }

    private void read() {
        try (BufferedReader in = new BufferedReader(new InputStreamReader(process.getInputStream()))) {
            for (String line = in.readLine(); line != null; line = in.readLine()) {
                synchronized (lines) {
                    lines.add(line);
                    came.add(System.nanoTime());
                    lines.notifyAll();
                }
            }
        } catch (IOException e) {
            // killed in the midst of a line
        } finally {
            synchronized (lines) {
                ended = true;
                lines.notifyAll();
            }
        }
    }

    /** The first line that is as wanted, or null if the program ends, or {@code ms} pass, without one. */
    public String await(Predicate<String> wanted, long ms) throws InterruptedException {
        long deadline = System.nanoTime() + ms * 1_000_000;
        int next = 0;
        synchronized (lines) {
            for (;;) {
                for (; next < lines.size(); next++) {
                    if (wanted.test(lines.get(next))) {
                        return lines.get(next);
                    }
                }
                long left = (deadline - System.nanoTime()) / 1_000_000;
                if (ended || left <= 0) {
                    return null;
                }
                lines.wait(left);
            }
        }
    }

    /** A line that must come. */
    public String expect(String start) throws InterruptedException {
        String line = await(l -> l.startsWith(start), PATIENCE_S * 1000);
        if (line == null) {
            throw new AssertionError("no line that opens with \"" + start + "\" from " + this);
        }
        return line;
    }

    /** Whether it ended by itself within so many microseconds. */
    public boolean endsWithin(long us) throws InterruptedException {
        return process.waitFor(us, TimeUnit.MICROSECONDS);
    }

    /** SIGKILL: nothing of the program runs any more, no hook, no handler. */
    public void kill() throws InterruptedException {
        process.destroyForcibly().waitFor();
        reader.join();
    }

    /** Waits for the program's end; one that does not end is shown with its threads' stacks. */
    public int exit() throws InterruptedException {
        if (!process.waitFor(PATIENCE_S, TimeUnit.SECONDS)) {
            dumpThreads();
            throw new AssertionError("does not end: " + this);
        }
        reader.join();
        return process.exitValue();
    }

    /** Its end, which must be a good one. */
    public Machine succeed() throws InterruptedException {
        int code = exit();
        if (code != 0) {
            throw new AssertionError("exit status " + code + " from " + this);
        }
        return this;
    }

    private void dumpThreads() throws InterruptedException {
        try {
            new ProcessBuilder("kill", "-QUIT", Long.toString(process.pid())).start().waitFor();
        } catch (IOException e) {
            throw new UncheckedIOException(e);
        }
        Thread.sleep(2000);
    }

    public List<String> lines() {
        synchronized (lines) {
            return List.copyOf(lines);
        }
    }

    public String line(String start) {
        return lines().stream().filter(l -> l.startsWith(start)).findFirst().orElse(null);
    }

    /** Milliseconds from the start until the first line that opens so; -1 if there is none. */
    public double msUntil(String start) {
        synchronized (lines) {
            for (int i = 0; i < lines.size(); i++) {
                if (lines.get(i).startsWith(start)) {
                    return (came.get(i) - started) / 1e6;
                }
            }
        }
        return -1;
    }

    public long pid() {
        return process.pid();
    }

    @Override
    public void close() {
        process.destroyForcibly();
        try {
            process.waitFor();
            reader.join();
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
        }
    }

    @Override
    public String toString() {
        List<String> l = lines();
        return command + "\n  " + String.join("\n  ", l.size() > 400 ? l.subList(l.size() - 400, l.size()) : l);
    }
}
