package systemtest.bad;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNotEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import java.util.stream.Stream;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;
import systemtest.harness.Machine;

/** Machines that lack something: the agent, the right Java, the file for themselves, stack, heap. */
class BadMachineIT {
    @TempDir
    Path folder;

    @Test
    void noAgent() throws Exception {
        try (Machine m = Machine.startWithout(List.of(), "orderbook.OrderBook", folder.resolve("pool"), 10)) {
            assertNotEquals(0, m.exit());
            assertTrue(m.lines().stream().anyMatch(l -> l.contains("PoolException") && l.contains("java -javaagent:towa.jar")), m::toString);
            assertTrue(Files.notExists(folder.resolve("pool")), "a file was made");
        }
    }

    @Test
    void olderJava() throws Exception {
        List<Path> older = older();
        if (older.isEmpty()) {
            System.out.println("SKIP: no Java older than 25 is here");
        }
        for (Path home : older) {
            try (Machine m = Machine.startOn(home, List.of("-javaagent:" + Machine.AGENT), "orderbook.OrderBook", folder.resolve("pool"), 10)) {
                assertEquals(1, m.exit(), m::toString);
                assertTrue(m.lines().stream().anyMatch(l -> l.startsWith("towa: needs JDK 25, and this is Java ")), m::toString);
            }
        }
    }

    private static List<Path> older() throws IOException {
        List<Path> found = new ArrayList<>();
        Path below = Path.of("/usr/lib/jvm");
        if (Files.isDirectory(below)) {
            try (Stream<Path> homes = Files.list(below)) {
                for (Path home : homes.filter(h -> Files.exists(h.resolve("release")) && Files.isExecutable(h.resolve("bin/java")) && !Files.isSymbolicLink(h)).toList()) {
                    Matcher version = Pattern.compile("JAVA_VERSION=\"(\\d+)").matcher(Files.readString(home.resolve("release")));
                    if (version.find() && Integer.parseInt(version.group(1)) < 25) {
                        found.add(home);
                    }
                }
            }
        }
        return found;
    }

    @Test
    void aSecondProcess() throws Exception {
        Path file = folder.resolve("pool");
        try (Machine first = Machine.start(List.of(), "webservice.Notes", file, 0)) {
            first.expect("listening on ");
            try (Machine second = Machine.start(List.of(), "webservice.Notes", file, 0)) {
                assertNotEquals(0, second.exit());
                assertTrue(second.lines().stream().anyMatch(l -> l.contains("PoolException") && l.contains("another process (") && l.contains(" has it open; end that one")), second::toString);
            }
            first.kill();
        }
        // Who was killed holds nothing any more.
        try (Machine third = Machine.start(List.of(), "webservice.Notes", file, 0)) {
            third.expect("listening on ");
            third.kill();
        }
    }

    private void survives(String kind, String... flags) throws Exception {
        try (Machine m = Machine.start(List.of(flags), "systemtest.bad.Trouble", kind, folder.resolve("pool"))) {
            m.succeed();
            assertTrue(m.lines().contains("done"), m::toString);
        }
    }

    @Test
    void theStackEnds() throws Exception {
        survives("stack", "-XX:+UseSerialGC");
    }

    @Test
    void theStackEndsInInterpretedCode() throws Exception {
        survives("stack", "-XX:+UseSerialGC", "-Xint");
    }

    @Test
    void theHeapEnds() throws Exception {
        survives("heap", "-XX:+UseSerialGC", "-Xmx48m");
    }

    @Test
    void theHeapEndsFullOfWhatWasDurable() throws Exception {
        survives("garbage", "-XX:+UseSerialGC", "-Xmx48m");
    }

    /** G1 allocates in regions that are wholly free. */
    @Test
    void theHeapEndsFullOfWhatWasDurableInRegions() throws Exception {
        survives("garbage", "-XX:+UseG1GC", "-Xmx48m");
    }

    @Test
    void thePoolIsLargerThanTheHeap() throws Exception {
        Path file = folder.resolve("pool");
        try (Machine m = Machine.start(List.of("-XX:+UseSerialGC", "-Xmx400m"), "systemtest.bad.LargerThanHeap", "fill", file)) {
            m.succeed();
        }
        for (String flags : List.of("-XX:+UseSerialGC", "-XX:+UseG1GC")) {
            Path copy = folder.resolve("copy" + flags.length());
            Files.copy(file, copy);
            try (Machine m = Machine.start(List.of(flags, "-Xmx48m"), "systemtest.bad.LargerThanHeap", "use", copy)) {
                m.succeed();
                assertTrue(m.lines().contains("done"), m::toString);
            }
        }
    }

    @Test
    void interrupts() throws Exception {
        survives("interrupts");
    }
}
