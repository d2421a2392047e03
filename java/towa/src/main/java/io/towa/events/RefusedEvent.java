package io.towa.events;

import jdk.jfr.Category;
import jdk.jfr.Description;
import jdk.jfr.Event;
import jdk.jfr.Label;
import jdk.jfr.Name;
import jdk.jfr.StackTrace;

/** A {@link io.towa.NotDurableException}. */
@Name("io.towa.Refused")
@Label("Refused")
@Category("Towa")
@Description("An object that cannot be durable was to become so")
@StackTrace(true)
final class RefusedEvent extends Event {
    @Label("Refused Class")
    Class<?> refused;
    @Label("Way to the Object")
    String path;
    @Label("Reason")
    String reason;
}
