package io.towa.graph;

import java.lang.reflect.Field;
import java.lang.reflect.Modifier;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Calendar;
import java.util.List;
import java.util.Set;
import java.util.TimeZone;
import jdk.internal.misc.Unsafe;

/**
 * Gives a {@link TimeZone} the rules that this run's JDK has for its name, as a {@code ZoneId} has them: the pool has those of the JDK that made it.
 *
 * <p>One whose offset the program has set has rules of its own, and so has a {@code SimpleTimeZone}: they are kept. A {@link Calendar} that knows its moment computes
 * its hours and days anew if its zone has changed.
 */
final class ZoneRepairs {
    private static final Unsafe U = Unsafe.getUnsafe();
    private static final Class<?> ZONE = Repairs.type("sun.util.calendar.ZoneInfo");
    /** Derived from the others. */
    private static final String LAST_RULE = "lastRule";
    private static final String CHANGED_BY_PROGRAM = "dirty";
    private static final long OF_CALENDAR = Repairs.offset(Calendar.class, "zone");
    private static final String[] COMPUTED = {"areFieldsSet", "areAllFieldsSet"};

    private final Repairs repairs;
    private final List<Object> changed = new ArrayList<>();
    private final List<Object> calendars = new ArrayList<>();

    ZoneRepairs(Repairs repairs) {
        this.repairs = repairs;
    }

    static boolean isSuspect(Class<?> c) {
        return c == ZONE || Calendar.class.isAssignableFrom(c);
    }

    void look(Object o) {
        if (o instanceof Calendar) {
            calendars.add(o);
            return;
        }
        TimeZone was = (TimeZone) o;
        TimeZone now = was.getID() == null ? null : TimeZone.getTimeZone(was.getID());
        // A name that this JDK does not know stands for GMT there.
        if (now == null || now.getClass() != ZONE || !now.getID().equals(was.getID()) || U.getBoolean(was, Repairs.offset(ZONE, CHANGED_BY_PROGRAM))) {
            return;
        }
        boolean differs = false;
        for (Field f : ZONE.getDeclaredFields()) {
            if (!Modifier.isStatic(f.getModifiers()) && !Set.of(LAST_RULE, CHANGED_BY_PROGRAM).contains(f.getName())) {
                differs |= take(was, now, U.objectFieldOffset(f), f.getType());
            }
        }
        if (differs) {
            repairs.put(was, Repairs.offset(ZONE, LAST_RULE), null);
            changed.add(was);
        }
    }

    /** After all have been looked at. */
    void calendars() {
        for (Object c : calendars) {
            Object zone = U.getReference(c, OF_CALENDAR);
            if (U.getBoolean(c, Repairs.offset(Calendar.class, "isTimeSet")) && isIn(changed, zone)) {
                for (String field : COMPUTED) {
                    repairs.putByte(c, Repairs.offset(Calendar.class, field), (byte) 0);
                }
            }
        }
    }

    private static boolean isIn(List<Object> all, Object o) {
        for (int i = 0; i < all.size(); i++) {
            if (all.get(i) == o) {
                return true;
            }
        }
        return false;
    }

    private boolean take(Object to, Object from, long at, Class<?> type) {
        if (type == int.class) {
            boolean differs = U.getInt(to, at) != U.getInt(from, at);
            repairs.putInt(to, at, U.getInt(from, at));
            return differs;
        }
        if (type == boolean.class) {
            boolean differs = U.getByte(to, at) != U.getByte(from, at);
            repairs.putByte(to, at, U.getByte(from, at));
            return differs;
        }
        Object was = U.getReference(to, at);
        Object now = U.getReference(from, at);
        if (Arrays.deepEquals(new Object[] {was}, new Object[] {now})) {
            return false;
        }
        repairs.put(to, at, now);
        return true;
    }
}
