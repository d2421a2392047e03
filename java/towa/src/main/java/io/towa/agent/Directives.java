package io.towa.agent;

import java.lang.reflect.Method;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Map;
import java.util.Set;
import jdk.internal.misc.Unsafe;

/**
 * Tells the JIT what not to try: the weaver. It is at work where a program starts, when C2 would spend a second or two on it, a third of a second on the one method by which
 * ASM reads code (5,117 bytecodes, a switch within a loop), while the program's own methods wait; what C1 makes of it is good enough. The way is the one of
 * {@code jcmd PID Compiler.directives_add FILE}; where it is barred (a runtime without {@code jdk.management}), nothing is lost but that time.
 */
final class Directives {
    private static final String[] WEAVER = {"asm/*", "agent/Calls*", "agent/ClassScan", "agent/MethodWeaver*", "agent/Skip", "agent/Straight", "agent/Volatility*",
        "agent/Weaver*", "agent/WholeMethods*"};
    /** Where fewer classes are woven C2 does not come to look at the weaver. */
    private static final int MANY = 30;
    private static int offered;
    private static boolean given;

    private Directives() {}

    /** A class has been woven: gives the directive if they become many; beside the caller. */
    static void woven() {
        if (given || ++offered != MANY) return;
        Thread t = new Thread(null, null, "towa-directives", 0, false) {
            @Override
            public void run() {
                give();
            }
        };
        t.setDaemon(true);
        t.start();
    }

    /** Once; it takes some 20 ms. */
    static synchronized void give() {
        if (given) return;
        given = true;
        try {
            tell();
        } catch (Throwable e) {
            // It was for speed.
        }
    }

    private static void tell() throws Exception {
        Module management = ModuleLayer.boot().findModule("jdk.management").orElse(null);
        if (management == null) return;
        Map<String, Set<Module>> opens = Map.of("com.sun.management.internal", Set.of(Directives.class.getModule()));
        Agent.instrumentation().redefineModule(management, Set.of(), Map.of(), opens, Set.of(), Map.of());
        // Its initialiser loads the library that has the native method.
        Class.forName("com.sun.management.internal.PlatformMBeanProviderImpl");
        Class<?> command = Class.forName("com.sun.management.internal.DiagnosticCommandImpl");
        Method execute = command.getDeclaredMethod("executeDiagnosticCommand", String.class);
        execute.setAccessible(true);
        Path file = Files.createTempFile("towa", ".json");
        try {
            Files.writeString(file, text());
            // Without its constructor, which would start the management of the whole machine.
            execute.invoke(Unsafe.getUnsafe().allocateInstance(command), "Compiler.directives_add " + file);
        } finally {
            Files.delete(file);
        }
    }

    private static String text() {
        StringBuilder match = new StringBuilder();
        for (int i = 0; i < WEAVER.length; i++) match.append(i == 0 ? "" : ", ").append("\"io/towa/").append(WEAVER[i]).append(".*\"");
        return "[{match: [" + match + "], c2: {Exclude: true}}]";
    }
}
