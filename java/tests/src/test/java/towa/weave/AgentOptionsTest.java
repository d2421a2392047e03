package towa.weave;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNotEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.towa.Towa;
import io.towa.TowaOptions;
import java.lang.management.ManagementFactory;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.TimeUnit;
import org.junit.jupiter.api.Test;

/** The options after -javaagent:towa.jar=, each in a machine of its own. */
class AgentOptionsTest {
    /** A program in which nothing is annotated. */
    static final class Program {
        static List<String> names = new ArrayList<>();
        static final List<String> FINAL = new ArrayList<>();
        static Thread runs = Thread.currentThread();

        public static void main(String[] args) throws Exception {
            names.add("before");
            Towa.open(Path.of(args[0]), TowaOptions.DEFAULT.withCapacity(64 << 20).skippingNotDurable());
            System.out.println("names " + names + " final " + FINAL);
            names.add("after");
            FINAL.add("kept");
            System.out.println("durable " + Towa.isDurable(names) + " " + Towa.isDurable(FINAL) + " " + Towa.isDurable(runs)
                + " differences " + Towa.verify());
            Towa.close();
        }
    }

    /** Runs a program with the agent in a machine of its own. Gives what it printed. */
    static String run(int[] status, String program, String options, String... args) throws Exception {
        return runWith(List.of(), List.of(), status, program, options, args);
    }

    /** The same, with flags before and after the agent's. */
    static String runWith(List<String> before, List<String> after, int[] status, String program, String options, String... args) throws Exception {
        String agent = null;
        for (String a : ManagementFactory.getRuntimeMXBean().getInputArguments()) if (a.startsWith("-javaagent:") && a.contains("towa.jar")) agent = a;
        List<String> line = new ArrayList<>(List.of(System.getProperty("java.home") + "/bin/java"));
        line.addAll(before);
        line.add(agent + options);
        line.addAll(after);
        line.addAll(List.of("-Xmx256m", "-cp", System.getProperty("java.class.path"), program));
        line.addAll(List.of(args));
        Process p = new ProcessBuilder(line).redirectErrorStream(true).start();
        String out = new String(p.getInputStream().readAllBytes());
        assertTrue(p.waitFor(60, TimeUnit.SECONDS));
        status[0] = p.exitValue();
        return out;
    }

    @Test
    void everyStaticFieldIsARoot() throws Exception {
        String file = Fixture.file("roots").toString();
        int[] status = new int[1];
        String first = run(status, Program.class.getName(), "=roots=all", file);
        assertEquals(0, status[0], first);
        assertTrue(first.contains("names [before] final []"), first);
        assertTrue(first.contains("durable true true false differences []"), first);
        String second = run(status, Program.class.getName(), "=roots=all", file);
        assertEquals(0, status[0], second);
        assertTrue(second.contains("names [before, after]"), second);
        Path.of(file).toFile().delete();
    }

    @Test
    void anOptionThatThereIsNot() throws Exception {
        int[] status = new int[1];
        String out = run(status, Program.class.getName(), "=roots=some");
        assertNotEquals(0, status[0]);
        assertTrue(out.contains("towa: unknown agent option \"roots=some\"; there are: roots=annotated (the default), roots=all"), out);
        assertTrue(!out.contains("Exception"), out);
    }

    /** So that C2 does not work for seconds on the weaver's code when the program's waits. */
    @Test
    void whereAPoolIsOpenedTheJitLeavesTheWeaverToC1() throws Exception {
        Path file = Fixture.file("directives");
        Towa.open(file, TowaOptions.DEFAULT.withCapacity(64 << 20));
        try {
            Object all = ManagementFactory.getPlatformMBeanServer().invoke(new javax.management.ObjectName("com.sun.management:type=DiagnosticCommand"), "compilerDirectivesPrint",
                null, null);
            String text = all.toString();
            assertTrue(text.contains("io/towa/asm/*") && text.contains("io/towa/agent/MethodWeaver") && text.contains("Exclude:true"), text);
        } finally {
            Towa.close();
            file.toFile().delete();
        }
    }
}
