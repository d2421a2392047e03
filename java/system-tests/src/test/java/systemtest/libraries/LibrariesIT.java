package systemtest.libraries;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;
import systemtest.harness.Machine;
import systemtest.harness.RustVerify;

/**
 * Structures of libraries that programs use: each is kept, or refused by name, and docs/java-libraries.md says which. With TOWA_WRITE_DOCS=1 the test writes that page
 * instead of comparing it.
 */
class LibrariesIT {
    private static final Path PAGE = Path.of("../../docs/java-libraries.md");

    @TempDir
    Path folder;

    private static List<String> run(Path pool, int run) throws Exception {
        try (Machine m = Machine.start(List.of("-Xmx512m", "-XX:TieredStopAtLevel=1"), "systemtest.libraries.LibrariesProgram", pool, String.valueOf(run))) {
            m.succeed();
            List<String> lines = new ArrayList<>(m.lines());
            lines.removeIf(l -> !l.matches("(kept|refused|BROKEN|done).*"));
            assertTrue(lines.remove("done"), String.join("\n", m.lines()));
            return lines;
        }
    }

    private static String page(List<String> lines) {
        StringBuilder page = new StringBuilder("""
            # Structures of libraries

            What becomes of structures of libraries in a durable graph, by the [policy](java-policy.md): each is kept, or refused by name at the store that would make it durable. A test
            makes this page (`java/system-tests`, `LibrariesIT`): it fills each structure while it is durable, ends the program as a kill would, and compares it in two further runs with a
            fresh one, by its own iteration, look-ups, equality and serialisation; in between it changes it.

            | library | structure | outcome |
            |---|---|---|
            """);
        for (String l : lines) {
            String[] parts = l.split("\\|", 4);
            String why = parts.length > 3 ? ": `" + parts[3].replaceAll(";.*", "") + "`" : "";
            page.append("| ").append(parts[1]).append(" | `").append(parts[2]).append("` | ").append(parts[0]).append(why).append(" |\n");
        }
        return page.toString();
    }

    @Test
    void eachIsKeptOrRefusedAsThePageSays() throws Exception {
        Path pool = folder.resolve("pool.towa");
        assertEquals(List.of(), run(pool, 1));
        List<String> second = run(pool, 2);
        List<String> third = run(pool, 3);
        assertEquals(List.of(), second.stream().filter(l -> l.startsWith("BROKEN")).toList());
        assertEquals(List.of(), third.stream().filter(l -> l.startsWith("BROKEN")).toList());
        assertEquals(second, third);
        RustVerify.check(pool);
        if (System.getenv("TOWA_WRITE_DOCS") != null) {
            Files.writeString(PAGE, page(third));
        }
        assertEquals(page(third), Files.readString(PAGE), "write the page with TOWA_WRITE_DOCS=1");
    }
}
