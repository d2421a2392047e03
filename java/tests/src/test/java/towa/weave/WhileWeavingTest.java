package towa.weave;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.towa.DurableRoot;
import io.towa.Towa;
import io.towa.TowaOptions;
import io.towa.agent.Agent;
import java.lang.instrument.ClassFileTransformer;
import java.lang.reflect.Field;
import java.nio.file.Files;
import java.nio.file.Path;
import java.security.ProtectionDomain;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.Exchanger;
import java.util.concurrent.atomic.LongAdder;
import java.util.jar.JarEntry;
import java.util.jar.JarFile;
import org.junit.jupiter.api.Test;

/**
 * While a class is being defined, agents run. The collections that they use run barriers, and a barrier must not need the class that is being
 * defined: the Java machine would refuse it with a ClassCircularityError, and the barrier's own class for ever after.
 */
class WhileWeavingTest {
    /** Another agent, whose map grows while classes are defined. */
    static final class Program {
        @DurableRoot
        static HashMap<Integer, Integer> numbers;

        public static void main(String[] args) throws Exception {
            Towa.open(Path.of(args[0]), TowaOptions.DEFAULT.withCapacity(64 << 20));
            List<String> seen = new ArrayList<>();
            Agent.instrumentation().addTransformer(new ClassFileTransformer() {
                @Override
                public byte[] transform(Module module, ClassLoader loader, String name, Class<?> redefined, ProtectionDomain domain, byte[] bytes) {
                    for (Map<Integer, Integer> mine : List.of(new HashMap<Integer, Integer>(), new TreeMap<Integer, Integer>(), new ConcurrentHashMap<Integer, Integer>())) {
                        // A mark, as a map that threads wait for has it, too: only the table of durable objects tells that this is none.
                        System.identityHashCode(mine);
                        for (int i = 0; i < 20; i++) {
                            mine.put(i, i);
                        }
                    }
                    seen.add(name);
                    return null;
                }
            });
            new Exchanger<Integer>();
            System.out.println("sum " + new LongAdder().sum() + " classes seen " + !seen.isEmpty());
            numbers = new HashMap<>();
            for (int i = 0; i < 1000; i++) {
                numbers.put(i, i);
            }
            System.out.println("numbers " + numbers.size() + " differences " + Towa.verify());
            Towa.close();
        }
    }

    @Test
    void aBarrierNeedsNoClassThatIsBeingDefined() throws Exception {
        Path file = Fixture.file("weaving");
        int[] status = new int[1];
        String out = AgentOptionsTest.run(status, Program.class.getName(), "", file.toString());
        file.toFile().delete();
        assertEquals(0, status[0], out);
        assertTrue(out.contains("sum 0 classes seen true"), out);
        assertTrue(out.contains("numbers 1000 differences []"), out);
    }

    /** The weaver's own maps; that of loaders is never the lock itself, so its barriers see at once that it is not durable. */
    @Test
    void theWeaverKeepsNothingInCollections() throws Exception {
        List<String> kept = new ArrayList<>();
        try (JarFile jar = new JarFile(agentJar().toFile())) {
            for (JarEntry e : jar.stream().filter(e -> e.getName().matches("io/towa/agent/.*\\.class")).toList()) {
                Class<?> c = Class.forName(e.getName().replace(".class", "").replace('/', '.'), false, null);
                for (Field f : c.getDeclaredFields()) {
                    if (f.getType().getName().startsWith("java.util.")) {
                        kept.add(c.getSimpleName() + "." + f.getName());
                    }
                }
            }
        }
        assertEquals(List.of("Agent.SIGHT"), kept);
    }

    private static Path agentJar() {
        for (String a : java.lang.management.ManagementFactory.getRuntimeMXBean().getInputArguments()) {
            if (a.startsWith("-javaagent:") && a.contains("towa.jar")) {
                Path jar = Path.of(a.substring("-javaagent:".length()).replaceAll("=.*", ""));
                assertTrue(Files.exists(jar), a);
                return jar;
            }
        }
        throw new AssertionError("no agent");
    }
}
