package systemtest.harness;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;

/** {@code towa verify FILE}: the pool's format as another program, in another language, understands it. */
public final class RustVerify {
    private static final Path CLI = find();
    private static boolean told;

    private RustVerify() {}

    private static Path find() {
        String given = System.getenv("TOWA_CLI");
        return given == null || given.isBlank() || !Files.isExecutable(Path.of(given)) ? null : Path.of(given);
    }

    /** The program; null, with a word once, if it is not there. */
    public static synchronized Path program() {
        if (CLI == null && !told) {
            System.out.println("SKIP: no `towa` program to work on pool files with (TOWA_CLI=target/release/towa)");
            told = true;
        }
        return CLI;
    }

    /** The file must be sound; no word if the program is not there, but once. */
    public static void check(Path file) throws IOException, InterruptedException {
        if (program() == null) {
            return;
        }
        Process p = new ProcessBuilder(CLI.toString(), "verify", file.toString()).redirectErrorStream(true).start();
        String said = new String(p.getInputStream().readAllBytes());
        // Killed before the pool was made whole: there is nothing to verify, as the status says.
        if (p.waitFor() != 0 && Files.size(file) > 0 && !said.contains("being made")) {
            throw new AssertionError("towa verify " + file + " says:\n" + said);
        }
    }
}
