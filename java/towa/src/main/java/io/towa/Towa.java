package io.towa;

import io.towa.agent.Agent;
import io.towa.graph.Checker;
import io.towa.graph.Collector;
import io.towa.graph.DurableGraph;
import io.towa.graph.Replicas;
import io.towa.graph.Sections;
import java.nio.file.Path;

/**
 * Durable objects: what is reachable from a static field marked {@link DurableRoot} survives the process.
 *
 * <pre>{@code
 *   @DurableRoot static Map<String, Order> orders;
 *
 *   Towa.open(Path.of("orders.towa"));      // orders is as it was, or as the program set it
 *   orders.put("a-1", new Order(...));      // durable when the statement ends
 * }</pre>
 *
 * <p>Needs the agent: {@code java -javaagent:towa.jar ...}. Stores to durable objects become durable in program order, and in
 * happens-before order between threads; reads cost nothing. One pool is open at a time. Source: RBP.
 */
public final class Towa {
    private Towa() {}

    /**
     * Opens a pool with {@link TowaOptions#DEFAULT}; made if there is none. The durable roots get the values that it holds.
     *
     * @param file the pool's
     * @throws PoolException the file cannot be opened, and is as it was; its {@link PoolException#reason} says why
     * @throws NotDurableException a root's present value cannot be durable
     */
    public static void open(Path file) {
        open(file, TowaOptions.DEFAULT);
    }

    /**
     * As {@link #open(Path)}.
     *
     * @param file the pool's
     * @param options how
     * @throws PoolException the file cannot be opened, and is as it was; its {@link PoolException#reason} says why
     * @throws NotDurableException a root's present value cannot be durable
     */
    public static void open(Path file, TowaOptions options) {
        requireAgent();
        DurableGraph.open(file, options);
    }

    /**
     * Whether {@code file} is a pool that was made whole, so that {@link #open} would recover from it.
     *
     * @param file it need not exist
     * @return false if there is none, or its making was interrupted
     * @throws PoolException it is damaged, or made by a newer version
     */
    public static boolean holdsData(Path file) {
        requireAgent();
        return DurableGraph.holdsData(file);
    }

    /**
     * Whether a pool is open: whether stores to what the roots reach are durable.
     *
     * @return also false without the agent
     */
    public static boolean isOpen() {
        return Agent.instrumentation() != null && DurableGraph.active();
    }

    /**
     * Ends durability: the objects stay as ordinary ones. What was stored before is in the file.
     *
     * @throws PoolException what was stored last could not be written: then the pool is still open, and closing may be tried again (a full disk); but after a sync
     *     that failed it is closed, and the next opening finds what {@link #sync} acknowledged
     */
    public static void close() {
        DurableGraph.close();
    }

    /** With {@link Durability#POWER}: returns when all that happened before is in the file and survives the loss of power. Else makes the kernel write back the file. */
    public static void sync() {
        requireOpen();
        DurableGraph.sync();
    }

    /**
     * Runs {@code writes}; after a crash either all of its stores to durable objects are there, or none. If it throws, what it stored stays. Sections
     * run one at a time; a lock that a section takes must not be released inside it.
     *
     * @param writes may call this again: it is all one section
     */
    public static void atomically(Runnable writes) {
        requireOpen();
        Sections.run(writes);
    }

    /**
     * Whether an object is durable now. One that no root reaches any more is so until the next {@link #collect}.
     *
     * @param o any object, or null
     * @return whether it has a replica in the open pool
     */
    public static boolean isDurable(Object o) {
        return o != null && isOpen() && Replicas.durable(o);
    }

    /**
     * Compares every durable object that is loaded with its replica. Nothing may store to them meanwhile.
     *
     * @return what differs, in words; empty if nothing does
     */
    public static java.util.List<String> verify() {
        requireOpen();
        return Checker.check();
    }

    /** Frees the replicas of objects that are no longer reachable from a durable root. Runs by itself when enough was allocated. */
    public static void collect() {
        requireOpen();
        Collector.collect();
    }

    /**
     * Counts and times of the open pool, and since the JVM's start.
     *
     * @return as of now
     */
    public static Metrics metrics() {
        return DurableGraph.metrics();
    }

    /**
     * What a store that has ended survives, with the pool that is open.
     *
     * @return for people, such as {@code strict; process-safe (the kernel's page cache has it)}
     */
    public static String guarantee() {
        requireOpen();
        return DurableGraph.guarantee();
    }

    /** Before anything of the library is touched that needs what the agent opens of the JDK. */
    private static void requireAgent() {
        if (Agent.instrumentation() == null) {
            throw new PoolException(PoolException.Reason.NO_AGENT, Agent.isIdle()
                ? "this run makes an AOT cache or CDS archive, so Towa's agent does nothing in it: open pools in other runs"
                : "Towa's agent is not there: start the program with  java -javaagent:towa.jar ...");
        }
    }

    private static void requireOpen() {
        if (!isOpen()) {
            throw new TowaException("no pool is open: call Towa.open first");
        }
    }
}
