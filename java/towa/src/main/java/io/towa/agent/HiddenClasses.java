package io.towa.agent;

/** Weaves hidden classes, which no transformer sees. Always true: a class that cannot be woven is defined as it was, and counted. */
public final class HiddenClasses {
    private HiddenClasses() {}

    /** Called for every hidden class, lambda forms included, in place of its definition's first step. */
    public static byte[] weave(Class<?> host, String name, byte[] bytes) {
        if (bytes == null || host == null || name.startsWith("io/towa/")) return bytes;
        byte[] woven = Agent.weaveHidden(host.getModule(), host.getClassLoader(), name, bytes);
        return woven == null ? bytes : woven;
    }
}
