package io.towa.graph;

import static org.junit.jupiter.api.Assertions.assertEquals;

import java.nio.file.Path;
import java.util.Calendar;
import java.util.GregorianCalendar;
import java.util.List;
import java.util.SimpleTimeZone;
import java.util.TimeZone;
import jdk.internal.misc.Unsafe;
import org.junit.jupiter.api.Test;

/** Zones that were made by a JDK with other rules for them. */
class ZoneRepairsTest {
    private static final Unsafe U = Unsafe.getUnsafe();
    private static final long SUMMER = 1_780_000_000_000L;
    private static final int HOUR = 3_600_000;

    /** As a JDK knew it in which Berlin was two hours before Greenwich all the year. */
    private static TimeZone old() {
        TimeZone z = TimeZone.getTimeZone("Europe/Berlin");
        Class<?> c = z.getClass();
        U.putInt(z, U.objectFieldOffset(c, "rawOffset"), 2 * HOUR);
        U.putInt(z, U.objectFieldOffset(c, "dstSavings"), 0);
        for (String table : new String[] {"transitions", "offsets", "simpleTimeZoneParams"}) {
            U.putReference(z, U.objectFieldOffset(c, table), null);
        }
        assertEquals(2 * HOUR, z.getRawOffset());
        assertEquals(0, z.getDSTSavings());
        return z;
    }

    @Test
    void rulesAreThoseOfToday() {
        Path p = SavedPool.save(old());
        for (int round = 0; round < 2; round++) {
            TimeZone z = (TimeZone) SavedPool.load(p);
            TimeZone now = TimeZone.getTimeZone("Europe/Berlin");
            assertEquals(now, z);
            assertEquals(now.getRawOffset(), z.getRawOffset());
            assertEquals(now.getOffset(SUMMER), z.getOffset(SUMMER));
            assertEquals(now.getOffset(0), z.getOffset(0));
        }
    }

    @Test
    void rulesOfTheProgramAreKept() {
        TimeZone set = TimeZone.getTimeZone("Europe/Berlin");
        set.setRawOffset(5 * HOUR);
        TimeZone unknown = old();
        unknown.setID("Moon/Copernicus");
        SimpleTimeZone own = new SimpleTimeZone(3 * HOUR, "Europe/Berlin");
        List<?> back = (List<?>) SavedPool.roundTrip(List.of(set, unknown, own));
        assertEquals(5 * HOUR, ((TimeZone) back.get(0)).getRawOffset());
        assertEquals(2 * HOUR, ((TimeZone) back.get(1)).getRawOffset());
        assertEquals(3 * HOUR, ((TimeZone) back.get(2)).getRawOffset());
    }

    @Test
    void aCalendarKeepsItsMoment() {
        Calendar c = new GregorianCalendar(old());
        c.setTimeInMillis(0);
        assertEquals(2, c.get(Calendar.HOUR_OF_DAY));
        Path p = SavedPool.save(c);
        for (int round = 0; round < 2; round++) {
            Calendar back = (Calendar) SavedPool.load(p);
            assertEquals(1, back.get(Calendar.HOUR_OF_DAY));
            assertEquals(0, back.getTimeInMillis());
        }
    }

    @Test
    void aCalendarWhoseFieldsWereSetKeepsThese() {
        Calendar c = new GregorianCalendar(old());
        c.clear();
        c.set(2026, Calendar.JULY, 1, 12, 0, 0);
        Calendar back = (Calendar) SavedPool.roundTrip(c);
        assertEquals(12, back.get(Calendar.HOUR_OF_DAY));
    }
}
