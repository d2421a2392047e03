package io.towa.events;

import jdk.jfr.Category;
import jdk.jfr.DataAmount;
import jdk.jfr.Description;
import jdk.jfr.Event;
import jdk.jfr.Label;
import jdk.jfr.Name;
import jdk.jfr.StackTrace;
import jdk.jfr.Timespan;

/** The objects of a pool were brought back. {@code gcTime} is not there for small pools, where it is not asked for. */
@Name("io.towa.Recovery")
@Label("Recovery")
@Category("Towa")
@Description("A pool was opened and its objects brought back")
@StackTrace(false)
final class RecoveryEvent extends Event {
    @Label("File")
    String file;
    @Label("Objects")
    long objects;
    @Label("Bytes in Use")
    @DataAmount
    long bytes;
    @Label("Pauses of the JVM's Collector")
    @Timespan(Timespan.NANOSECONDS)
    long gcTime;
    @Label("Guarantee")
    String guarantee;
    @Label("Rewritten for Changed Classes")
    boolean rewritten;
}
