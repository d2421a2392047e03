package io.towa.events;

import jdk.jfr.Event;

/** What refers to JFR; loaded when that is. */
final class Recorder {
    /** To ask whether a kind is recorded: cheaper than making one each time. In the order of the kinds in {@link Events}. */
    private static final Event[] OF_KIND = {new PromotionEvent(), new RecoveryEvent(), new CollectionEvent(), new CommitEvent(),
        new LoadEvent()};
    private static final RefusedEvent REFUSED = new RefusedEvent();

    private Recorder() {}

    /** Initialises the events' classes, which registers them. */
    static void load() {}

    static Object begin(int kind) {
        if (!OF_KIND[kind].isEnabled()) {
            return null;
        }
        Event e;
        switch (kind) {
            case Events.PROMOTION:
                e = new PromotionEvent();
                break;
            case Events.RECOVERY:
                e = new RecoveryEvent();
                break;
            case Events.COLLECTION:
                e = new CollectionEvent();
                break;
            case Events.LOAD:
                e = new LoadEvent();
                break;
            default:
                e = new CommitEvent();
                break;
        }
        e.begin();
        return e;
    }

    static boolean ended(Object event) {
        Event e = (Event) event;
        e.end();
        return e.shouldCommit();
    }

    static Object refused(Class<?> c, String path, String reason) {
        if (!REFUSED.isEnabled()) {
            return null;
        }
        RefusedEvent e = new RefusedEvent();
        e.refused = c;
        e.path = path;
        e.reason = reason;
        return e;
    }

    static void commit(Object event) {
        ((Event) event).commit();
    }
}
