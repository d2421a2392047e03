/**
 * Durable objects; needs the agent too: {@code java -javaagent:towa.jar -p towa.jar:app.jar -m app/app.Main}.
 *
 * <p>The agent keeps this module's name, and what it makes a program resolve; its classes come from the boot loader, where woven classes of the JDK see
 * them ({@code io.towa.agent.HandOver}).
 */
module io.towa {
    requires java.instrument;
    requires java.management;
    requires jdk.nio.mapmode;
    requires static jdk.jfr;

    exports io.towa;
    exports rbp;
    exports io.towa.agent to java.instrument;
}
