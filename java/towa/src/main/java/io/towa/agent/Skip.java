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
        // From here: no instance can be durable, and arrays written to are their own until they are handed out.
        {"jdk/internal/classfile/", "makes class files in buffers of its own"},
        {"java/lang/classfile/", "makes class files"},
        {"java/lang/constant/", "descriptions of constants"},
        {"jdk/internal/constant/", "descriptions of constants"},
        {"java/lang/module/", "descriptions of modules"},
        {"jdk/internal/module/", "descriptions of modules"},
        {"jdk/internal/loader/", "loads classes into arrays of its own"},
        {"jdk/internal/jimage/", "reads the JDK's image into arrays of its own"},
        {"jdk/internal/access/", "interfaces"},
        {"java/lang/invoke/LambdaForm", "code"},
        {"java/lang/invoke/InvokerBytecodeGenerator", "code"},
        {"java/lang/invoke/GenerateJLI", "code"},
        {"java/lang/invoke/MemberName", "names of members"},
        {"java/lang/invoke/MethodType", "types of methods"},
        {"java/lang/invoke/MethodHandleNatives", "links code"},
        {"java/lang/invoke/BoundMethodHandle", "method handles cannot be durable"},
        {"java/lang/invoke/ClassSpecializer", "makes classes"},
        {"java/lang/invoke/InnerClassLambdaMetafactory", "makes classes"},
        {"java/lang/invoke/AbstractValidatingLambdaMetafactory", "makes classes"},
        {"java/lang/invoke/TypeConvertingMethodAdapter", "makes classes"},
        {"sun/instrument/", "runs the weaver"},
        {"java/lang/instrument/", "runs the weaver"},
    };

    /** Packages of the JDK whose classes may have durable instances. */
    private static final String[] DATA = {"java/lang", "java/util", "java/util/concurrent", "java/util/concurrent/atomic", "java/util/regex",
        "java/util/concurrent/locks", "java/time", "java/time/chrono", "java/time/zone", "java/time/temporal", "java/time/format", "java/math",
        "java/text", "java/net", "java/sql", "java/awt/geom", "sun/util/calendar", "sun/util/locale", "jdk/internal/util"};

    /**
     * Fields of the JDK that are caches, or mean something in this run of the program only: left out of replicas, null or zero after recovery. A class, then its
     * fields.
     */
    private static final String[][] LEFT_OUT = {
        {"java/lang/String", "hash", "hashIsZero"},
        {"java/lang/Throwable", "backtrace"},
        {"java/util/concurrent/locks/AbstractQueuedSynchronizer", "head", "tail", "state"},
        {"java/util/concurrent/locks/AbstractOwnableSynchronizer", "exclusiveOwnerThread"},
        {"java/util/concurrent/locks/AbstractQueuedSynchronizer$ConditionObject", "firstWaiter", "lastWaiter"},
        {"java/util/concurrent/ArrayBlockingQueue", "itrs"},
        {"java/util/AbstractMap", "keySet", "values"},
        {"java/util/HashMap", "entrySet"},
        {"java/util/TreeMap", "entrySet", "navigableKeySet", "descendingMap"},
        {"java/util/Hashtable", "keySet", "entrySet", "values"},
        {"java/util/IdentityHashMap", "entrySet"},
        {"java/util/EnumMap", "entrySet"},
        {"java/util/concurrent/ConcurrentHashMap", "keySet", "values", "entrySet", "cellsBusy"},
        {"java/util/concurrent/ConcurrentSkipListMap", "keySet", "values", "entrySet", "descendingMap"},
        {"java/util/concurrent/ConcurrentHashMap$TreeBin", "lockState", "waiter"},
        {"java/util/concurrent/atomic/Striped64", "cellsBusy"},
        {"java/util/concurrent/PriorityBlockingQueue", "allocationSpinLock"},
        {"java/util/concurrent/DelayQueue", "leader"},
    };

    /** Of this library alone it may be durable, and is woven: it is called by programs, never by barriers. */
    private static final String ON_DEMAND = "io/towa/OnDemand";

    private Skip() {}

    /**
     * Of a class of the boot loader: may its instances be durable? The graph's policy asks here, too, and refuses instances of all others.
     */
    static boolean mayHoldData(String name) {
        int slash = name.lastIndexOf('/');
        for (int i = 0; i < DATA.length; i++) if (DATA[i].length() == slash && name.startsWith(DATA[i])) return true;
        return name.equals(ON_DEMAND);
    }

    /** Why the class of that internal name is not woven; null: it is. */
    static String reason(String name) {
        // Most classes are an application's: nothing here is.
        char first = name.charAt(0);
        if (first != 'j' && first != 's' && first != 'i' || name.equals(ON_DEMAND)) return null;
        for (int i = 0; i < PREFIXES.length; i++) {
            String prefix = PREFIXES[i][0];
            if (!name.startsWith(prefix)) continue;
            boolean whole = !prefix.endsWith("/") && (prefix.endsWith("Object") || prefix.endsWith("Unsafe"));
            if (!whole || name.length() == prefix.length()) return PREFIXES[i][1];
        }
        return null;
    }

    /** Of a field of a class of the JDK: is it left out of replicas, so that a store to it needs no barrier? */
    static boolean leftOut(String owner, String field) {
        for (int i = 0; i < LEFT_OUT.length; i++) {
            if (!LEFT_OUT[i][0].equals(owner)) continue;
            for (int k = 1; k < LEFT_OUT[i].length; k++) if (LEFT_OUT[i][k].equals(field)) return true;
            return false;
        }
        return false;
    }
}
