package towabench;

import java.nio.file.Path;
import java.time.Duration;
import java.util.List;

/**
 * What was asked for.
 *
 * @param quick smaller sizes, fewer rounds: a first look
 * @param only the parts to run; empty: all
 * @param programs the programs to run; empty: all that are there
 * @param modes in which they run; empty: all
 * @param scratch an empty folder on a disk
 * @param ram an empty folder in memory
 * @param dax a folder on a DAX mount; null: there is none
 * @param size of the programs' work; 10: a tenth of a second to half a second of it an iteration
 */
public record Settings(boolean quick, List<String> only, List<String> programs, List<Mode> modes, String agentJar, String classPath, Path scratch, Path ram, Path dax,
    Path sources, int size, int rounds, int iterations, Duration patience) {

    public boolean wants(String part) {
        return only.isEmpty() || only.contains(part);
    }

    public boolean wants(Mode mode) {
        return modes.isEmpty() || mode == Mode.plain || modes.contains(mode);
    }

    /** A name that no pool has yet, in memory. */
    public Path freshPool() throws java.io.IOException {
        return freshPool(ram);
    }

    public static Path freshPool(Path folder) throws java.io.IOException {
        Path pool = java.nio.file.Files.createTempFile(folder, "bench", ".towa");
        java.nio.file.Files.delete(pool);
        return pool;
    }
}
