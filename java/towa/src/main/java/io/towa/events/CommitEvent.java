package io.towa.events;

import jdk.jfr.Category;
import jdk.jfr.DataAmount;
import jdk.jfr.Description;
import jdk.jfr.Event;
import jdk.jfr.Label;
import jdk.jfr.Name;
import jdk.jfr.StackTrace;
import jdk.jfr.Timespan;

/** A commit that had something to write. */
@Name("io.towa.Commit")
@Label("Commit")
@Category("Towa")
@Description("The image as of one moment became durable (Durability.POWER)")
@StackTrace(false)
final class CommitEvent extends Event {
    @Label("Pages")
    long pages;
    @Label("Bytes")
    @DataAmount
    long bytes;
    @Label("Pause of Stores")
    @Timespan(Timespan.NANOSECONDS)
    long pause;
}
