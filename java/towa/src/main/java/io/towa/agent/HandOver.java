package io.towa.agent;

import java.io.File;
import java.lang.instrument.Instrumentation;
import java.lang.reflect.Method;
import java.util.Iterator;
import java.util.Map;
import java.util.Set;
import java.util.jar.JarFile;

/**
 * When the agent was not started from the boot loader: makes sure that there is one copy of the library, the boot loader's, which alone every woven class sees.
 *
 * <ul>
 * <li>The jar has another name than its manifest expects ({@code Boot-Class-Path}), so the boot loader does not have it: then it gets it.
 * <li>The jar is on the module path: then the application's loader would define its own copy of module io.towa's classes, and the program
 * would call that one, while the JDK's stores go to the other. So the loader forgets that these packages are that module's, asks its parents as for any other package,
 * and all modules that read io.towa read the boot loader's unnamed module as well.
 * </ul>
 *
 * <p>This copy of the class, and {@link Agent}'s, are all that is ever loaded of the second one.
 */
final class HandOver {
    private HandOver() {}

    /** Runs the agent of the boot loader. */
    static void run(String options, Instrumentation inst) throws Exception {
        Class<?> agent = boot(inst);
        Module us = HandOver.class.getModule();
        if (us.isNamed()) {
            forget(us, inst);
            read(us, agent.getModule(), inst);
        }
        Method premain = agent.getMethod("premain", String.class, Instrumentation.class);
        premain.invoke(null, options, inst);
    }

    private static Class<?> boot(Instrumentation inst) throws Exception {
        try {
            return Class.forName(Agent.class.getName(), true, null);
        } catch (ClassNotFoundException e) {
            File jar = new File(HandOver.class.getProtectionDomain().getCodeSource().getLocation().toURI());
            inst.appendToBootstrapClassLoaderSearch(new JarFile(jar));
            return Class.forName(Agent.class.getName(), true, null);
        }
    }

    private static void forget(Module us, Instrumentation inst) {
        try {
            Map<String, Set<Module>> opens = Map.of("jdk.internal.loader", Set.of(us));
            inst.redefineModule(Object.class.getModule(), Set.of(), Map.of(), opens, Set.of(), Map.of());
            Method packages = Class.forName("jdk.internal.loader.BuiltinClassLoader").getDeclaredMethod("packageToModule");
            packages.setAccessible(true);
            Map<?, ?> modules = (Map<?, ?>) packages.invoke(null);
            for (Iterator<String> it = us.getPackages().iterator(); it.hasNext();) modules.remove(it.next());
        } catch (ReflectiveOperationException | RuntimeException e) {
            throw new IllegalStateException("on this Java, towa.jar cannot be on the module path (" + e
                + "): take it off there, and start the program with  --add-reads MODULE=ALL-UNNAMED", e);
        }
    }

    private static void read(Module us, Module boot, Instrumentation inst) {
        for (Iterator<Module> it = ModuleLayer.boot().modules().iterator(); it.hasNext();) {
            Module m = it.next();
            if (m != us && m.canRead(us) && !m.canRead(boot)) inst.redefineModule(m, Set.of(boot), Map.of(), Map.of(), Set.of(), Map.of());
        }
    }
}
