package io.towa.medium;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNotEquals;
import static org.junit.jupiter.api.Assertions.assertNotNull;
import static org.junit.jupiter.api.Assertions.assertNull;

import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import jdk.internal.misc.Unsafe;
import org.junit.jupiter.api.Assumptions;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;

class WriteBackTest {
    /** Says what is told; then writes back a line. */
    public static final class Program {
        private Program() {}

        public static void main(String[] args) {
            boolean can = WriteBack.unavailable() == null;
            System.out.println(can ? "can" : "cannot");
            System.out.flush();
            Unsafe u = Unsafe.getUnsafe();
            u.writebackMemory(u.allocateMemory(4096), 64);
            System.exit(can ? 42 : 43);
        }
    }

    /** In each mode what is told is what this JVM does: it goes on, or it dies. If a later one does not die any more, this tells, too. */
    @ParameterizedTest
    @ValueSource(strings = {"-Xmixed", "-Xcomp", "-XX:-TieredCompilation", "-XX:CompilationMode=high-only", "-XX:TieredStopAtLevel=4", "-Xint", "-XX:TieredStopAtLevel=3",
        "-XX:TieredStopAtLevel=2", "-XX:TieredStopAtLevel=1", "-XX:TieredStopAtLevel=0", "-XX:CompilationMode=quick-only"})
    void whatIsToldIsSo(String mode) throws Exception {
        Assumptions.assumeTrue(Unsafe.isWritebackEnabled(), "SKIP: nothing here writes back cache lines");
        List<String> command = new ArrayList<>(List.of(Path.of(System.getProperty("java.home"), "bin", "java").toString(), mode, "-XX:-CreateCoredumpOnCrash",
            "-XX:ErrorFile=/dev/null", "--add-exports", "java.base/jdk.internal.misc=ALL-UNNAMED", "-cp", System.getProperty("java.class.path"), Program.class.getName()));
        Process p = new ProcessBuilder(command).redirectErrorStream(true).start();
        String said = new String(p.getInputStream().readAllBytes());
        int exit = p.waitFor();
        assertNotEquals(43, exit, "it was told that it cannot, and can");
        assertEquals(exit == 42 ? "can" : "cannot", said.lines().findFirst().orElse(""), said);
    }

    @ParameterizedTest
    @ValueSource(strings = {"mixed mode, sharing", "compiled mode"})
    void theLastOfTheArgumentsCounts(String info) {
        assertNull(WriteBack.unavailable(info, new String[] {"-Xmx1g", "-XX:TieredStopAtLevel=4"}));
        assertNull(WriteBack.unavailable(info, new String[] {"-XX:TieredStopAtLevel=1", "-XX:TieredStopAtLevel=4"}));
        assertNotNull(WriteBack.unavailable(info, new String[] {"-XX:TieredStopAtLevel=4", "-XX:TieredStopAtLevel=1"}));
        assertNotNull(WriteBack.unavailable("interpreted mode", new String[0]));
    }
}
