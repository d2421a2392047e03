package io.towa.agent;

import java.lang.reflect.Method;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Map;
import java.util.Set;
import jdk.internal.misc.Unsafe;

/**
 * Tells the JIT what not to try: C2 works 1.5 to 3 s on the one method by which ASM reads code (5,117 bytecodes, a switch within a loop), while the program's own
 * methods wait; what C1 makes of it is as good. The way is the one of {@code jcmd PID Compiler.directives_add FILE}; where it is barred (a runtime without
 * {@code jdk.management}), nothing is lost but that time.
 */
final class Directives {
    private static final String TEXT = "[{match: \"io/towa/asm/ClassReader.readCode\", c2: {Exclude: true}}]";
    /** A program that loads fewer classes ends before C2 looks at them. */
    private static final int MANY = 100;
    private static int offered;
    private static boolean given;

    private Directives() {}

    /** A class of the program has been woven: gives the directive if they become many; beside the caller. */
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
            Files.writeString(file, TEXT);
            // Without its constructor, which would start the management of the whole machine.
            execute.invoke(Unsafe.getUnsafe().allocateInstance(command), "Compiler.directives_add " + file);
        } finally {
            Files.delete(file);
        }
    }
}
