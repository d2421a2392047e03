package stress;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.BufferedReader;
import java.io.File;
import java.io.InputStreamReader;
import java.util.ArrayList;
import java.util.List;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import org.junit.jupiter.api.Test;

/** Runs jcstress, whose machines have the agent; {@code -Dstress.options} says how long. It fails by its exit status, and tells what it has seen. */
class StressIT {
    @Test
    void noStoreIsLost() throws Exception {
        File target = new File("target");
        List<String> command = new ArrayList<>(List.of(System.getProperty("java.home") + "/bin/java", "-cp", System.getProperty("java.class.path"),
            "org.openjdk.jcstress.Main", "-r", new File(target, "jcstress").getPath(), "-jvmArgs", "-javaagent:" + System.getProperty("agent.jar") + " -Xmx512m -XX:+UseSerialGC"));
        command.addAll(List.of(System.getProperty("stress.options").trim().split("\\s+")));
        // Its results are written into the folder in which it runs.
        Process p = new ProcessBuilder(command).directory(target).redirectErrorStream(true).start();
        List<String> lines = new ArrayList<>();
        try (BufferedReader in = new BufferedReader(new InputStreamReader(p.getInputStream()))) {
            for (String l = in.readLine(); l != null; l = in.readLine()) {
                lines.add(l);
            }
        }
        String all = String.join("\n", lines);
        assertEquals(0, p.waitFor(), all);
        Matcher m = Pattern.compile("Results: .*?(\\d+) passed, (\\d+) failed, (\\d+) soft errs, (\\d+) hard errs").matcher(all);
        String last = null;
        int passed = 0;
        while (m.find()) {
            last = m.group();
            passed = Integer.parseInt(m.group(1));
            assertEquals("0", m.group(2), all);
            assertEquals("0", m.group(4), all);
        }
        // A harness that ran nothing passes otherwise.
        assertTrue(passed >= 12, "only " + passed + " tests ran:\n" + all);
        System.out.println("jcstress: " + last);
    }
}
