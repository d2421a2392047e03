package io.towa.agent;

/**
 * Classes that are not woven, each with the reason.
 *
 * <p>Always true: no instance of such a class can be durable (java.lang.Object aside, which has no fields), and such a class writes to
 * its own instances and arrays only.
 */
final class Skip {
    private static final String[][] PREFIXES = {
        {"io/towa/", "this library itself: barriers within barriers would not end"},
        {"java/lang/Object", "no fields"},
        {"jdk/internal/misc/Unsafe", "its callers are woven"},
        {"java/lang/Thread", "threads cannot be durable; every barrier asks for the current one"},
        {"java/lang/VirtualThread", "threads cannot be durable"},
        {"java/lang/BaseVirtualThread", "threads cannot be durable"},
        {"java/lang/ScopedValue", "belongs to threads"},
        {"java/lang/StackStreamFactory", "the machine writes its frame buffers"},
        {"java/lang/ref/", "references are the collector's"},
        {"java/util/concurrent/locks/", "locks in use cannot be durable; they write their own queue only"},
        {"java/util/concurrent/ForkJoin", "pools of threads; work queues of their own"},
        {"jdk/internal/vm/Continuation", "stacks of virtual threads"},
        {"jdk/internal/vm/StackChunk", "stacks of virtual threads"},
        {"jdk/internal/vm/ThreadContainer", "belongs to threads"},
        {"sun/instrument/", "runs the weaver"},
        {"java/lang/instrument/", "runs the weaver"},
    };

    private Skip() {}

    /** Why the class of that internal name is not woven; null: it is. */
    static String reason(String name) {
        for (int i = 0; i < PREFIXES.length; i++) {
            String prefix = PREFIXES[i][0];
            if (!name.startsWith(prefix)) continue;
            boolean whole = !prefix.endsWith("/") && (prefix.endsWith("Object") || prefix.endsWith("Unsafe"));
            if (!whole || name.length() == prefix.length()) return PREFIXES[i][1];
        }
        return null;
    }
}
