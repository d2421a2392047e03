package io.towa.events;

import jdk.jfr.Category;
import jdk.jfr.DataAmount;
import jdk.jfr.Description;
import jdk.jfr.Event;
import jdk.jfr.Label;
import jdk.jfr.Name;
import jdk.jfr.StackTrace;
import jdk.jfr.Timespan;

/** A cycle of the collector of replicas. */
@Name("io.towa.Collection")
@Label("Collection of Replicas")
@Category("Towa")
@Description("Replicas that no durable root reaches were freed")
@StackTrace(false)
final class CollectionEvent extends Event {
    @Label("Objects Kept")
    long kept;
    @Label("Objects Freed")
    long freed;
    @Label("Bytes in Use After")
    @DataAmount
    long bytes;
    @Label("Longest Pause of Stores")
    @Timespan(Timespan.NANOSECONDS)
    long pause;
}
