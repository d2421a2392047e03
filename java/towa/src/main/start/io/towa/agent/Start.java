package io.towa.agent;

import java.lang.instrument.Instrumentation;

/** Where the JVM starts the agent: the one class of the jar that an older JDK can load, so it can say which JDK is needed. */
public final class Start {
    private static final int NEEDED = 25;

    private Start() {}

    /**
     * Entry from -javaagent:towa.jar[=options].
     *
     * @param options of the agent; may be null
     * @param inst the JVM's
     * @throws Exception the agent cannot run
     */
    public static void premain(String options, Instrumentation inst) throws Exception {
        if (!enough(System.getProperty("java.specification.version"))) {
            System.err.println("towa: needs JDK " + NEEDED + ", and this is Java " + System.getProperty("java.version") + " ("
                + System.getProperty("java.home") + ")");
            System.exit(1);
        }
        Agent.premain(options, inst);
    }

    /** Versions before 9 are called 1.8 and so on. */
    private static boolean enough(String version) {
        try {
            return Integer.parseInt(version) >= NEEDED;
        } catch (NumberFormatException e) {
            return false;
        }
    }
}
