package systemtest.runtimes;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNotEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import javax.tools.ToolProvider;
import jdk.jfr.consumer.RecordedEvent;
import jdk.jfr.consumer.RecordingFile;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;
import systemtest.harness.Machine;

/** Ways to start a program: from the module path, with a jar of another name, while JFR records, without JFR. */
class RuntimesIT {
    private static final String PROGRAM = """
        package shop;
        import io.towa.*;
        import java.nio.file.Path;
        import java.util.*;
        public class Main {
            @DurableRoot static List<String> list;
            public static void main(String[] args) {
                Towa.open(Path.of(args[0]));
                if (list == null) list = new ArrayList<>();
                list.add("entry " + list.size());
                try {
                    @SuppressWarnings("unchecked") List<Object> any = (List<Object>) (List<?>) list;
                    any.add(Thread.currentThread());
                } catch (NotDurableException e) {
                    System.out.println("refused " + e.path());
                }
                System.out.println("list " + list + ", different " + Towa.verify());
            }
        }
        """;

    @TempDir
    Path folder;

    /** Compiles it; as module {@code app}, or for the class path. */
    private Path program(boolean module) throws Exception {
        Path source = Files.createDirectories(folder.resolve("source/shop")).resolve("Main.java");
        Files.writeString(source, PROGRAM);
        Path out = folder.resolve("classes");
        List<String> arguments = new ArrayList<>(List.of("-proc:none", "-d", out.toString(), module ? "-p" : "-cp", Machine.AGENT.toString(), source.toString()));
        if (module) {
            Path info = folder.resolve("source/module-info.java");
            Files.writeString(info, "module app { requires io.towa; }");
            arguments.add(info.toString());
        }
        assertEquals(0, ToolProvider.getSystemJavaCompiler().run(null, null, null, arguments.toArray(new String[0])));
        return out;
    }

    /** Runs it with {@code flags}, and nothing else, on one pool; this is the {@code time}-th time. */
    private void run(int time, List<String> flags, String... main) throws Exception {
        List<Object> arguments = new ArrayList<>(List.of(main).subList(1, main.length));
        arguments.add(folder.resolve("pool.towa"));
        try (Machine m = Machine.startWithout(flags, main[0], arguments.toArray()).succeed()) {
            m.expect("refused ");
            StringBuilder all = new StringBuilder("entry 0");
            for (int i = 1; i < time; i++) {
                all.append(", entry ").append(i);
            }
            assertEquals("list [" + all + "], different []", m.expect("list "));
        }
    }

    private static String agent(Path jar) {
        return "-javaagent:" + jar;
    }

    @Test
    void modularProgram() throws Exception {
        Path out = program(true);
        String path = Machine.AGENT + ":" + out;
        List<String> flags = List.of("-cp", folder.toString(), agent(Machine.AGENT), "-p", path);
        run(1, flags, "-m", "app/shop.Main");
        run(2, flags, "-m", "app/shop.Main");
        // What io.towa requires is all it needs.
        run(3, List.of("-cp", folder.toString(), agent(Machine.AGENT), "--limit-modules", "app", "-p", path), "-m", "app/shop.Main");
        run(4, List.of("-cp", folder.toString(), agent(renamed()), "-p", path), "-m", "app/shop.Main");
    }

    @Test
    void modularProgramWithoutAgent() throws Exception {
        Path out = program(true);
        List<String> flags = List.of("-cp", folder.toString(), "-p", Machine.AGENT + ":" + out);
        try (Machine m = Machine.startWithout(flags, "-m", "app/shop.Main", folder.resolve("pool.towa"))) {
            assertNotEquals(0, m.exit());
            assertTrue(m.lines().stream().anyMatch(l -> l.contains("PoolException") && l.contains("java -javaagent:towa.jar")), m::toString);
        }
    }

    /** As jlink makes one of what the program itself requires. */
    @Test
    void runtimeWithoutAModuleThatIsNeeded() throws Exception {
        List<String> flags = List.of("-cp", program(false) + ":" + Machine.AGENT, agent(Machine.AGENT), "--limit-modules", "java.base,java.instrument,java.management");
        try (Machine m = Machine.startWithout(flags, "shop.Main", folder.resolve("pool.towa"))) {
            assertNotEquals(0, m.exit());
            assertTrue(m.lines().stream().anyMatch(l -> l.contains("PoolException") && l.contains("jdk.nio.mapmode")), m::toString);
        }
        run(1, flags.subList(0, 3), "shop.Main");
    }

    private Path renamed() throws Exception {
        return named("memory.jar");
    }

    private Path named(String name) throws Exception {
        Path jar = Files.createDirectories(folder.resolve("repository")).resolve(name);
        return Files.exists(jar) ? jar : Files.copy(Machine.AGENT, jar);
    }

    /** As a repository of jars names it: the JVM finds it by itself, and has nothing to warn of. */
    @Test
    void jarWithItsVersion() throws Exception {
        Path jar = named("towa-0.1.0.jar");
        List<String> flags = List.of("-cp", program(false) + ":" + jar, agent(jar));
        try (Machine m = Machine.startWithout(flags, "shop.Main", folder.resolve("pool.towa")).succeed()) {
            assertEquals(List.of(), m.lines().stream().filter(l -> l.contains("warning")).toList());
        }
    }

    @Test
    void jarThatIsRun() throws Exception {
        try (Machine m = Machine.startWithout(List.of("-jar", Machine.AGENT.toString()), "explain", "-cp", program(false), "shop.Main", "java.util.Timer")) {
            assertEquals(1, m.exit(), m::toString);
            assertTrue(m.lines().contains("  kept              root java.util.List list: by the class of the object in it"), m.lines()::toString);
            assertTrue(m.lines().contains("2 classes, 1 refused"), m.lines()::toString);
        }
    }

    @Test
    void jarOfAnotherName() throws Exception {
        String path = program(false) + ":" + renamed();
        List<String> flags = List.of("-cp", path, agent(renamed()));
        run(1, flags, "shop.Main");
        run(2, flags, "shop.Main");
    }

    /** The program as a jar: the JVM archives no classes of folders. */
    private Path programJar() throws Exception {
        Path jar = folder.resolve("shop.jar");
        java.util.spi.ToolProvider tool = java.util.spi.ToolProvider.findFirst("jar").orElseThrow();
        assertEquals(0, tool.run(System.out, System.err, "cf", jar.toString(), "-C", program(false).toString(), "."));
        return jar;
    }

    /** A run with the agent that is to make an archive of classes weaves nothing and says so, instead of a crash of the JVM at its end. */
    @Test
    void archiveMadeBesideTheAgent() throws Exception {
        List<String> flags = List.of("-cp", programJar().toString(), agent(Machine.AGENT), "-XX:AOTMode=record",
            "-XX:AOTConfiguration=" + folder.resolve("configuration"));
        try (Machine m = Machine.startWithout(flags, "shop.Main", folder.resolve("pool.towa"))) {
            assertEquals(1, m.exit(), m::toString);
            m.expect("towa: this run makes an AOT cache or CDS archive");
            assertTrue(m.lines().stream().anyMatch(l -> l.contains("PoolException: this run makes an AOT cache")), m::toString);
            assertTrue(Files.notExists(folder.resolve("pool.towa")), "a file was made");
        }
    }

    /** As docs/java.md says: classes listed with the agent, the archive made without, with Towa's classes on the boot loader's path. */
    @Test
    void archiveUsedWithTheAgent() throws Exception {
        String jar = programJar().toString();
        Path list = folder.resolve("shop.classes");
        Path archive = folder.resolve("shop.jsa");
        run(1, List.of("-cp", jar, agent(Machine.AGENT), "-XX:DumpLoadedClassList=" + list), "shop.Main");
        List<String> dump = List.of("-Xshare:dump", "-XX:SharedClassListFile=" + list, "-XX:SharedArchiveFile=" + archive,
            "-Xbootclasspath/a:" + Machine.AGENT, "--add-modules", "java.instrument", "-cp", jar);
        try (Machine m = Machine.startWithout(dump, "-version")) {
            m.succeed();
        }
        List<String> use = List.of("-cp", jar, agent(Machine.AGENT), "-XX:SharedArchiveFile=" + archive, "-Xshare:on");
        run(2, use, "shop.Main");
        List<String> logged = new ArrayList<>(use);
        logged.add("-Xlog:class+load");
        try (Machine m = Machine.startWithout(logged, "shop.Main", folder.resolve("pool.towa")).succeed()) {
            assertTrue(m.lines().stream().anyMatch(l -> l.contains(" io.towa.agent.Agent source: shared objects file")), m::toString);
        }
    }

    /** An archive that was made with towa.jar on the class path has a second copy of the library. */
    @Test
    void archiveOfASecondCopy() throws Exception {
        String path = programJar() + ":" + Machine.AGENT;
        Path cache = folder.resolve("shop.aot");
        // Without the agent the program fails; what it had loaded by then is archived.
        List<String> make = List.of("-cp", path, "-XX:-AOTClassLinking", "-XX:AOTCacheOutput=" + cache);
        try (Machine m = Machine.startWithout(make, "shop.Main", folder.resolve("pool.towa"))) {
            assertEquals(1, m.exit(), m::toString);
            assertTrue(Files.exists(cache), m::toString);
        }
        List<String> use = List.of("-cp", path, agent(Machine.AGENT), "-XX:AOTCache=" + cache);
        try (Machine m = Machine.startWithout(use, "shop.Main", folder.resolve("pool.towa"))) {
            assertEquals(1, m.exit(), m::toString);
            m.expect("towa: the archive of classes that this JVM uses");
        }
    }

    @Test
    void recordedFromTheStart() throws Exception {
        Path recording = folder.resolve("recording.jfr");
        List<String> flags = List.of("-cp", program(false) + ":" + Machine.AGENT, agent(Machine.AGENT),
            "-XX:StartFlightRecording:filename=" + recording);
        run(1, flags, "shop.Main");
        run(2, flags, "shop.Main");
        List<RecordedEvent> events = RecordingFile.readAllEvents(recording);
        assertEquals(1, events.stream().filter(e -> e.getEventType().getName().equals("io.towa.Recovery") && e.getLong("objects") > 1).count());
        assertEquals(1, events.stream().filter(e -> e.getEventType().getName().equals("io.towa.Refused")).count());
    }

    @Test
    void withoutJfr() throws Exception {
        List<String> flags = List.of("-cp", program(false) + ":" + Machine.AGENT, agent(Machine.AGENT),
            "--limit-modules", "java.base,java.instrument,java.management,jdk.nio.mapmode");
        run(1, flags, "shop.Main");
        run(2, flags, "shop.Main");
    }

    @Test
    void jfrIsNotLoadedWhereNobodyRecords() throws Exception {
        List<String> flags = List.of("-cp", program(false) + ":" + Machine.AGENT, agent(Machine.AGENT), "-Xlog:class+load");
        try (Machine m = Machine.startWithout(flags, "shop.Main", folder.resolve("pool.towa")).succeed()) {
            assertTrue(m.lines().stream().anyMatch(l -> l.contains(" io.towa.events.Events ")), m::toString);
            assertEquals(List.of(), m.lines().stream().filter(l -> l.contains(" jdk.jfr.") || l.contains("io.towa.events.Recorder")).toList());
        }
    }
}
