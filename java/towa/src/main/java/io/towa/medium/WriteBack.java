package io.towa.medium;

import jdk.internal.misc.Unsafe;
import jdk.internal.misc.VM;

/**
 * Whether this JVM can write back cache lines, as durable memory asks for. It generates that code together with what its optimising compiler (C2) needs, and without that
 * compiler {@link Unsafe#writebackMemory}, and {@code MappedByteBuffer.force} with it, jumps to address 0 (JDK 25).
 */
public final class WriteBack {
    private static final String LEVEL = "-XX:TieredStopAtLevel=";

    private WriteBack() {}

    /** Null, or why it cannot. */
    public static String unavailable() {
        return Unsafe.isWritebackEnabled() ? unavailable(System.getProperty("java.vm.info", ""), VM.getRuntimeArguments())
            : "this processor, or this build of Java, does not write back cache lines";
    }

    static String unavailable(String vmInfo, String[] arguments) {
        String why = vmInfo.startsWith("interpreted") ? "-Xint" : vmInfo.contains("emulated-client") ? "its quick compiler alone" : null;
        String level = LEVEL + 4;
        for (int i = 0; i < arguments.length; i++) {
            level = arguments[i].startsWith(LEVEL) ? arguments[i] : level;
        }
        why = level.equals(LEVEL + 4) ? why : level;
        return why == null ? null : "this JVM's mode (" + why + ") leaves out its optimising compiler, and without that it cannot write back cache lines but would crash";
    }
}
