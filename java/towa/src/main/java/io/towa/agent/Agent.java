package io.towa.agent;

import io.towa.barrier.Enums;
import io.towa.events.Events;
import java.lang.instrument.ClassFileTransformer;
import java.lang.instrument.Instrumentation;
import java.lang.instrument.UnmodifiableClassException;
import java.security.ProtectionDomain;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.Map;
import java.util.Set;
import java.util.WeakHashMap;
import java.util.zip.CRC32;

/**
 * The agent: weaves every class defined from now on, and on demand all that were defined before.
 *
 * <p>Always true: weaving never makes the definition of a class fail. A class that could not be woven is defined as it was, counted, and
 * named in {@link #failures}.
 */
public final class Agent {
    /** A class that is not, or not wholly, woven. */
    public static final class Failure {
        public final String className;
        public final Throwable cause;

        Failure(String className, Throwable cause) {
            this.className = className;
            this.cause = cause;
        }

        @Override
        public String toString() {
            return className + ": " + cause;
        }
    }

    private static volatile Instrumentation instrumentation;
    private static boolean allRoots;
    /** Classes offered to the weaver, and those of them that failed. */
    private static final LongSet SEEN = new LongSet();
    /** Classes that a sweep has looked at and need no weaving any more. */
    private static final LongSet KNOWN = new LongSet();
    /** So many classes are not worth a second thread. */
    private static final int FEW = 100;
    private static volatile boolean sweepNeeded = true;
    private static final LongSet FAILED = new LongSet();
    private static final Object FAILING = new Object();
    private static Failure[] failures = new Failure[0];
    private static final Object SEEING = new Object();
    /** Loaders other than the machine's own: do they see our barrier classes? */
    private static final WeakHashMap<ClassLoader, Boolean> SIGHT = new WeakHashMap<ClassLoader, Boolean>();
    private static ClassLoader platform;
    private static ClassLoader system;
    private static long wovenCount;
    /** Something is, or is about to be, durable: from then on time at the start no longer matters. */
    private static volatile boolean opened;
    /** Numbered classes, but for the boot loader's, each with the class file that it was defined from. */
    private static final LongSet DEFINED = new LongSet();
    /** When the agent began, in milliseconds: the program has loaded none of its classes before. */
    public static final long BEGAN = System.currentTimeMillis();
    /** The class whose class file {@link #classFile} asks for, and the file; guarded by {@link #ASKING}. */
    private static final Object ASKING = new Object();
    private static volatile Class<?> asked;
    private static volatile Thread asker;
    private static volatile byte[] answer;
    /** Numbered classes that another agent has changed. */
    private static final LongSet CHANGED = new LongSet();

    /** The agent was started in a run in which it must not weave. */
    private static boolean idle;

    private Agent() {}

    /** What {@link Start} runs. */
    public static void premain(String options, Instrumentation inst) throws Exception {
        if (Agent.class.getClassLoader() != null) {
            try {
                HandOver.run(options, inst);
            } catch (IllegalAccessError e) {
                // Of two loaders, though both are in one jar: this class is from an archive.
                Archives.refuseCopies();
            }
            return;
        }
        String unknown = parse(options);
        if (unknown != null) {
            System.err.println("towa: unknown agent option \"" + unknown + "\"; there are: roots=annotated (the default), roots=all");
            System.exit(1);
        }
        export(inst);
        platform = ClassLoader.getPlatformClassLoader();
        system = ClassLoader.getSystemClassLoader();
        idle = Archives.isMaking();
        if (idle) return;
        Archives.check(system);
        instrumentation = inst;
        inst.addTransformer(new Transformer(), true);
        // Lambda forms made before a pool is opened stay for ever: their definer must be woven from the start.
        inst.retransformClasses(Class.forName("java.lang.invoke.MethodHandles$Lookup$ClassDefiner", false, null), Enum.class, inst.getClass(), ClassLoader.class);
        Class<?>[] loaded = inst.getAllLoadedClasses();
        for (int i = 0; i < loaded.length; i++) Enums.learn(loaded[i]);
    }

    /** The first option that there is not; null: none. */
    private static String parse(String options) {
        if (options == null) return null;
        for (int from = 0; from < options.length(); ) {
            int end = options.indexOf(',', from);
            if (end < 0) end = options.length();
            String o = options.substring(from, end).trim();
            if (o.equals("roots=all")) allRoots = true;
            else if (!o.equals("roots=annotated") && o.length() != 0) return o;
            from = end + 1;
        }
        return null;
    }

    private static void export(Instrumentation inst) {
        Module base = Object.class.getModule();
        Set<Module> us = Set.of(Agent.class.getModule());
        HashMap<String, Set<Module>> exports = new HashMap<String, Set<Module>>();
        String[] packages = {"jdk.internal.misc", "jdk.internal.access", "jdk.internal.vm", "jdk.internal.vm.annotation", "jdk.internal.reflect", "sun.nio.ch"};
        for (int i = 0; i < packages.length; i++) exports.put(packages[i], us);
        inst.redefineModule(base, Set.of(), exports, Map.of(), Set.of(), Map.of());
    }

    /** null if the program runs without the agent. */
    public static Instrumentation instrumentation() {
        return instrumentation;
    }

    /** Whether the agent was started, and does nothing because the run makes an archive of classes. */
    public static boolean isIdle() {
        return idle;
    }

    /** Is every static reference field of application classes a root? */
    public static boolean allRoots() {
        return allRoots;
    }

    private static long definition(String name, ClassLoader loader, byte[] file) {
        CRC32 sum = new CRC32();
        sum.update(file);
        long key = LongSet.key(name, loader) * 31 + sum.getValue();
        return key == 0 ? 1 : key;
    }

    /**
     * Whether {@code c} was defined from that class file: true only if no agent before this one changed it, and nothing has replaced the file since. Always false of classes
     * that are not numbered, are the boot loader's, or were loaded before this agent.
     */
    public static boolean isDefinedFrom(Class<?> c, byte[] file) {
        return DEFINED.has(definition(c.getName().replace('.', '/'), c.getClassLoader(), file));
    }

    /**
     * The class file that {@code c} was loaded from, before weaving. The JVM may make it anew, without attributes. Stops the program for a moment.
     *
     * @return null if the program runs without the agent, if the JVM does not give the file, or if another agent has changed it
     */
    public static byte[] classFile(Class<?> c) {
        if (instrumentation == null || !instrumentation.isModifiableClass(c)) return null;
        synchronized (ASKING) {
            asker = Thread.currentThread();
            asked = c;
            try {
                instrumentation.retransformClasses(c);
                return CHANGED.has(LongSet.key(c.getName(), c.getClassLoader())) ? null : answer;
            } catch (UnmodifiableClassException | RuntimeException | LinkageError e) {
                return null;
            } finally {
                asked = null;
                asker = null;
                answer = null;
            }
        }
    }

    /**
     * Another agent has made a class file.
     *
     * @return whether this thread asks for that class, and this library's transformer, which weaves it, comes later
     */
    static boolean changed(String name, ClassLoader loader) {
        if (NumberedNames.mayBe(name)) CHANGED.add(LongSet.key(name, loader));
        Class<?> c = asked;
        return asker == Thread.currentThread() && c != null && answer == null && c.getClassLoader() == loader && c.getName().replace('.', '/').equals(name);
    }

    private static final class Transformer implements ClassFileTransformer {
        Transformer() {}

        @Override
        public byte[] transform(Module module, ClassLoader loader, String name, Class<?> redefined, ProtectionDomain domain, byte[] bytes) {
            if (name == null) return null;
            if (redefined != null && redefined == asked && asker == Thread.currentThread()) answer = bytes;
            if (redefined == null && loader != null && NumberedNames.mayBe(name)) DEFINED.add(definition(name, loader, bytes));
            if (name.equals(OtherAgents.IMPLEMENTATION)) return OtherAgents.woven(bytes);
            Events.classDefined(name);
            return Skip.reason(name) != null ? null : weave(module, loader, name, bytes, LongSet.key(name, loader));
        }
    }

    /** Also what is hidden in a class that is skipped: lambda forms write to what they are given. */
    static byte[] weaveHidden(Module module, ClassLoader loader, String name, byte[] bytes) {
        return weave(module, loader, name, bytes, LongSet.key(name, loader));
    }

    static byte[] weave(Module module, ClassLoader loader, String name, byte[] bytes, long key) {
        try {
            boolean jdk = loader == null || loader == platform;
            if (!jdk && !(loader == system) && !sees(loader)) throw new IllegalStateException("its loader does not see the boot classes");
            Weaver.Job job = new Weaver.Job(new ClassScan(bytes), module, loader, !jdk);
            job.hasty = jdk && !opened;
            byte[] woven = Weaver.weave(job, allRoots);
            if (!job.provisional) SEEN.add(key);
            if (job.failure != null) fail(name, key, job.failure);
            if (woven != null) wovenCount++;
            Directives.woven();
            return woven;
        } catch (Throwable e) {
            SEEN.add(key);
            fail(name, key, e);
            return null;
        } finally {
            sweepNeeded = true;
        }
    }

    /** A loader that does not ask its parents for our package would break a class that calls a barrier. */
    private static boolean sees(ClassLoader loader) {
        synchronized (SEEING) {
            Boolean known = SIGHT.get(loader);
            if (known != null) return known.booleanValue();
        }
        boolean sees;
        try {
            sees = Class.forName("io.towa.barrier.Barrier", false, loader).getClassLoader() == null;
        } catch (Throwable e) {
            sees = false;
        }
        synchronized (SEEING) {
            SIGHT.put(loader, Boolean.valueOf(sees));
        }
        return sees;
    }

    private static void fail(String name, long key, Throwable cause) {
        FAILED.add(key);
        synchronized (FAILING) {
            for (int i = 0; i < failures.length; i++) if (failures[i].className.equals(name)) return;
            Failure[] more = new Failure[failures.length + 1];
            System.arraycopy(failures, 0, more, 0, failures.length);
            more[failures.length] = new Failure(name, cause);
            failures = more;
        }
    }

    /** Classes that could not be woven, in the order they were met. */
    public static Failure[] failures() {
        synchronized (FAILING) {
            return failures.clone();
        }
    }

    /** Classes changed by the weaver so far. */
    public static long wovenCount() {
        return wovenCount;
    }

    static boolean isUnwoven(Class<?> c) {
        String name = c.getName().replace('.', '/');
        if (c.isHidden() || Skip.reason(name) != null) return true;
        long key = LongSet.key(name, c.getClassLoader());
        if (!SEEN.has(key)) sweep();
        return !SEEN.has(key) || FAILED.has(key);
    }

    /** Weaves the classes loaded before the agent. To be called before anything becomes durable; later calls find what was missed. */
    public static void weaveJdk() {
        if (instrumentation == null) throw new IllegalStateException("start the program with -javaagent:towa.jar");
        opened = true;
        Directives.give();
        // Twice: weaving itself loads classes, and those pass no transformer.
        sweepIfNeeded();
        sweepIfNeeded();
    }

    /** Only the weaver at work makes classes pass it by; if it was not since the last sweep, there is none. */
    static void sweepIfNeeded() {
        if (sweepNeeded) sweep();
    }

    /** Weaves loaded classes that were never offered: those loaded before the agent, and those loaded by the weaver at work. */
    static void sweep() {
        sweepNeeded = false;
        ArrayList<Class<?>> missed = new ArrayList<Class<?>>();
        Class<?>[] loaded = instrumentation.getAllLoadedClasses();
        for (int i = 0; i < loaded.length; i++) {
            Class<?> c = loaded[i];
            String name = c.getName();
            // Not by the identity hash of the class, which would be another in each run from then on: hash codes of the program's objects may come from it.
            long known = LongSet.key(name, c.getClassLoader());
            if (KNOWN.has(known)) continue;
            Events.classFound(name);
            if (!isMissed(c, name)) KNOWN.add(known);
            else missed.add(c);
        }
        if (missed.isEmpty()) return;
        Class<?>[] all = new Class<?>[missed.size()];
        for (int i = 0; i < all.length; i++) all[i] = missed.get(i);
        boolean interrupted = false;
        int half = all.length > FEW ? all.length / 2 : 0;
        Thread other = half == 0 ? null : new Half(all, half);
        if (other != null) other.start();
        retransform(all, half, all.length);
        while (other != null && other.isAlive()) {
            try {
                other.join();
            } catch (InterruptedException e) {
                interrupted = true;
            }
        }
        if (interrupted) Thread.currentThread().interrupt();
    }

    /** Weaves the first half of many classes beside the other. */
    private static final class Half extends Thread {
        private final Class<?>[] all;
        private final int to;

        Half(Class<?>[] all, int to) {
            super(null, null, "towa-weaver", 0, false);
            this.all = all;
            this.to = to;
            setDaemon(true);
        }

        @Override
        public void run() {
            retransform(all, 0, to);
        }
    }

    private static boolean isMissed(Class<?> c, String name) {
        return !c.isArray() && !c.isPrimitive() && !c.isHidden() && !name.startsWith("io.towa.")
            && !SEEN.has(LongSet.key(name, c.getClassLoader())) && Skip.reason(name.replace('.', '/')) == null
            && instrumentation.isModifiableClass(c);
    }

    /** In one go; if that fails, by halves until the class at fault is alone. */
    private static void retransform(Class<?>[] all, int from, int to) {
        Class<?>[] part = new Class<?>[to - from];
        System.arraycopy(all, from, part, 0, part.length);
        try {
            instrumentation.retransformClasses(part);
        } catch (UnmodifiableClassException | RuntimeException | Error e) {
            if (part.length == 1) {
                String name = part[0].getName().replace('.', '/');
                fail(name, LongSet.key(name, part[0].getClassLoader()), e);
                SEEN.add(LongSet.key(name, part[0].getClassLoader()));
                return;
            }
            retransform(all, from, (from + to) / 2);
            retransform(all, (from + to) / 2, to);
        }
    }
}
