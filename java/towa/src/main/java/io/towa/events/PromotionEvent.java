package io.towa.events;

import jdk.jfr.Category;
import jdk.jfr.DataAmount;
import jdk.jfr.Description;
import jdk.jfr.Event;
import jdk.jfr.Label;
import jdk.jfr.Name;
import jdk.jfr.StackTrace;
import jdk.jfr.Threshold;

/** Objects became durable together. Only long ones: there may be a million short ones in a second. */
@Name("io.towa.Promotion")
@Label("Promotion")
@Category("Towa")
@Description("Objects became durable: one, and all it reaches")
@Threshold("100 us")
@StackTrace(true)
final class PromotionEvent extends Event {
    @Label("Objects")
    long objects;
    @Label("Bytes of Replicas")
    @DataAmount
    long bytes;
    @Label("Class of the First Object")
    Class<?> first;
}
