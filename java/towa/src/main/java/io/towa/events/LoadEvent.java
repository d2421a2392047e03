package io.towa.events;

import jdk.jfr.Category;
import jdk.jfr.Description;
import jdk.jfr.Event;
import jdk.jfr.Label;
import jdk.jfr.Name;

/** A value behind an OnDemand was brought back. The stack trace says who asked for it. */
@Name("io.towa.Load")
@Label("Load")
@Category("Towa")
@Description("The value of an OnDemand was brought back from the pool")
final class LoadEvent extends Event {
    @Label("File")
    String file;
    @Label("Objects")
    long objects;
}
