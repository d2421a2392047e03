package towabench;

/** How a program is run. */
public enum Mode {
    /** The JDK as it is. */
    plain,
    /** With the agent; no pool is opened. */
    agent,
    /** With the agent, a pool open, and a small durable graph that has nothing to do with the program and changes a few times a second. */
    pool,
    /** Every static reference field of the application is a durable root, from its first instruction on; what cannot be durable is skipped and counted. */
    all;

    public boolean opens() {
        return this == pool || this == all;
    }

    /** What the JVM needs for it. */
    public String[] options(String agentJar) {
        switch (this) {
            case plain:
                return new String[0];
            case all:
                return new String[] {"-javaagent:" + agentJar + "=roots=all"};
            default:
                return new String[] {"-javaagent:" + agentJar};
        }
    }
}
