package io.towa.events;

import java.util.ArrayList;

/**
 * Events for the flight recorder, if there is one at work. An event is an {@code Object} here; null: nobody wants it.
 *
 * <p>Before JFR is loaded this costs a look at a static field, and loads nothing: the weaver, which sees every class that is defined, says when JFR
 * comes ({@link #classDefined}).
 *
 * <p>What must always hold: an event is committed where its thread is outside the gate and holds no lock of the graph, for JFR's own code is woven and
 * may pass the gate. So what is made inside waits until its thread leaves: {@link #commitWaiting}. Nothing here throws: a lost event
 * is better than a store without its mirror.
 */
public final class Events {
    /** The first class that JFR loads when somebody records, or asks whether somebody does. */
    private static final String RECORDER = "jdk/jfr/internal/PlatformRecorder";

    public static final int PROMOTION = 0;
    public static final int RECOVERY = 1;
    public static final int COLLECTION = 2;
    public static final int COMMIT = 3;
    public static final int LOAD = 4;

    private static final Object LOCK = new Object();
    /** JFR is loaded, our classes for it are not. Plain, as {@link #on}: a thread that sees it late misses an event. */
    private static boolean starting;
    private static boolean started;
    private static boolean on;
    /** Threads and their events, in turn, oldest first; under LOCK. */
    private static final ArrayList<Object> WAITING = new ArrayList<>();
    /** Whether there are any; written under LOCK, and a thread sees at least what itself has written. */
    private static boolean waiting;

    private Events() {}

    /** The weaver met a class, by its internal name; on the thread that defines it, so nothing is done here yet. */
    public static void classDefined(String name) {
        // The length decides nearly always.
        if (!started && name.equals(RECORDER)) {
            starting = true;
        }
    }

    /** As {@link #classDefined}, for classes loaded before the agent, by their binary name. */
    public static void classFound(String name) {
        if (!started && name.length() == RECORDER.length() && name.replace('.', '/').equals(RECORDER)) {
            starting = true;
        }
    }

    /** Whether {@link #start} is wanted. */
    public static boolean starting() {
        return starting;
    }

    /** Outside the gate: from now on events are made. */
    public static void start() {
        synchronized (LOCK) {
            if (started || !starting) {
                starting = false;
                return;
            }
            started = true;
        }
        try {
            Recorder.load();
            on = true;
        } catch (Throwable e) {
            // A JFR that is not as we know it, or no room: no events.
        }
        starting = false;
    }

    /** @return null if nobody records events of this kind */
    public static Object begin(int kind) {
        if (!on) {
            return null;
        }
        try {
            return Recorder.begin(kind);
        } catch (Throwable e) {
            return null;
        }
    }

    /**
     * What began with {@link #begin} has ended well.
     *
     * @return whether it lasted long enough to be recorded; then its fields are to be set, and it is to be committed
     */
    public static boolean ended(Object event) {
        try {
            return event != null && Recorder.ended(event);
        } catch (Throwable e) {
            return false;
        }
    }

    /** @param first class of the object through which all others were found */
    public static void promotion(Object event, long objects, long bytes, Class<?> first) {
        PromotionEvent e = (PromotionEvent) event;
        e.objects = objects;
        e.bytes = bytes;
        e.first = first;
        later(e);
    }

    /** @param gcNanos pauses of the JVM's collector meanwhile; below 0: not known */
    public static void recovery(Object event, String file, String guarantee, long objects, long bytes, long gcNanos, boolean rewritten) {
        RecoveryEvent e = (RecoveryEvent) event;
        e.file = file;
        e.guarantee = guarantee;
        e.objects = objects;
        e.bytes = bytes;
        e.gcTime = gcNanos < 0 ? Long.MIN_VALUE : gcNanos;
        e.rewritten = rewritten;
        later(e);
    }

    public static void load(Object event, String file, long objects) {
        LoadEvent e = (LoadEvent) event;
        e.file = file;
        e.objects = objects;
        later(e);
    }

    public static void collection(Object event, long kept, long freed, long bytes, long pauseNanos) {
        CollectionEvent e = (CollectionEvent) event;
        e.kept = kept;
        e.freed = freed;
        e.bytes = bytes;
        e.pause = pauseNanos;
        later(e);
    }

    public static void commit(Object event, long pages, long bytes, long pauseNanos) {
        CommitEvent e = (CommitEvent) event;
        e.pages = pages;
        e.bytes = bytes;
        e.pause = pauseNanos;
        later(e);
    }

    /** An object that cannot be durable was refused. */
    public static void refused(Class<?> c, String path, String reason) {
        if (!on) {
            return;
        }
        try {
            Object event = Recorder.refused(c, path, reason);
            if (event != null) {
                later(event);
            }
        } catch (Throwable e) {
            // none, then
        }
    }

    private static void later(Object event) {
        try {
            synchronized (LOCK) {
                WAITING.ensureCapacity(WAITING.size() + 2);
                WAITING.add(Thread.currentThread());
                WAITING.add(event);
                waiting = true;
            }
        } catch (Throwable e) {
            // no room: lost
        }
    }

    /** Whether {@link #commitWaiting} may have something to do. */
    public static boolean waiting() {
        return waiting;
    }

    /** Commits what this thread has made; outside the gate, no lock of the graph held. */
    public static void commitWaiting() {
        try {
            for (Object event = next(); event != null; event = next()) {
                Recorder.commit(event);
            }
        } catch (Throwable e) {
            // lost
        }
    }

    /** This thread's oldest event, which waits no longer. */
    private static Object next() {
        if (!waiting) {
            return null;
        }
        synchronized (LOCK) {
            Thread me = Thread.currentThread();
            for (int i = 0; i < WAITING.size(); i += 2) {
                if (WAITING.get(i) == me) {
                    WAITING.remove(i);
                    Object event = WAITING.remove(i);
                    waiting = !WAITING.isEmpty();
                    return event;
                }
            }
        }
        return null;
    }
}
