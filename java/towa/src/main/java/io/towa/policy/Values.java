package io.towa.policy;

import java.nio.charset.Charset;
import java.nio.file.FileSystems;
import java.nio.file.Path;
import java.time.DayOfWeek;
import java.time.ZoneId;
import java.time.ZoneOffset;
import java.time.temporal.WeekFields;
import java.util.Currency;
import java.util.Locale;
import java.util.regex.Pattern;

/**
 * Values of the JDK that are kept by what they are called, not by their fields: this run's JDK makes them anew, with the rules, the tables and the identity that it
 * has for them. The text of one is its class, {@code =}, and what its factory needs.
 *
 * <p>Always true: {@code of(text(o))} equals {@code o}, and is {@code o} where the JDK has one instance of it; what cannot be found so has no text, and is kept by its
 * fields, or refused.
 */
public final class Values {
    private Values() {}

    /** Whether instances of {@code c} may be kept by name. */
    public static boolean may(Class<?> c) {
        return c.getClassLoader() == null && kind(c) != null;
    }

    /** By which class' factory an instance of {@code c} is made; null: by none. */
    private static String kind(Class<?> c) {
        String name = c.getName();
        switch (name) {
            case "java.lang.Boolean", "java.lang.Byte", "java.lang.Short", "java.lang.Character", "java.lang.Integer", "java.lang.Long", "java.util.Currency",
                "java.util.Locale", "java.time.ZoneOffset", "java.time.ZoneRegion", "java.time.temporal.WeekFields", "java.lang.Character$UnicodeBlock",
                "java.util.regex.Pattern", "java.io.File", "java.util.logging.Level":
                return name;
            default:
                return Path.class.isAssignableFrom(c) && name.startsWith("sun.nio.fs.") ? "java.nio.file.Path"
                    : Charset.class.isAssignableFrom(c) ? "java.nio.charset.Charset" : null;
        }
    }

    /** Whether the number is one of which the JDK has a single instance; cheaper than {@link #text}. */
    public static boolean isNamed(Object o) {
        if (o instanceof Integer) {
            int v = (Integer) o;
            return v >= -128 && v <= 127 && o == Integer.valueOf(v);
        }
        if (o instanceof Long) {
            long v = (Long) o;
            return v >= -128 && v <= 127 && o == Long.valueOf(v);
        }
        if (o instanceof Character) {
            char v = (Character) o;
            return v <= 127 && o == Character.valueOf(v);
        }
        return text(o) != null;
    }

    /** The text of {@code o}, whose class {@link #may} be kept by name; null: this one is not. */
    public static String text(Object o) {
        String kind = kind(o.getClass());
        String value = value(o, kind);
        if (value == null || value.length() > 1 << 14) {
            return null;
        }
        return kind + "=" + value;
    }

    private static String value(Object o, String kind) {
        switch (kind) {
            case "java.lang.Boolean", "java.lang.Byte", "java.lang.Short", "java.lang.Character", "java.lang.Integer", "java.lang.Long":
                String v = o instanceof Character c ? Integer.toString(c) : o.toString();
                return of(kind, v) == o ? v : null;
            case "java.util.Currency":
                return ((Currency) o).getCurrencyCode();
            case "java.util.Locale":
                return locale((Locale) o);
            case "java.time.ZoneOffset":
                return Integer.toString(((ZoneOffset) o).getTotalSeconds());
            case "java.time.ZoneRegion":
                return ((ZoneId) o).getId();
            case "java.time.temporal.WeekFields":
                return ((WeekFields) o).getFirstDayOfWeek() + " " + ((WeekFields) o).getMinimalDaysInFirstWeek();
            case "java.util.regex.Pattern":
                return ((Pattern) o).flags() + " " + ((Pattern) o).pattern();
            case "java.nio.file.Path":
                return ((Path) o).getFileSystem() == FileSystems.getDefault() ? o.toString() : null;
            case "java.nio.charset.Charset":
                return found(o, kind, ((Charset) o).name());
            case "java.util.logging.Level":
                return found(o, kind, (String) call(o, "getName", String.class));
            default:
                return found(o, kind, o.toString());
        }
    }

    /** Of what the JDK has one instance of: the value, if it leads back to {@code o}. */
    private static String found(Object o, String kind, String value) {
        Object again = value == null ? null : of(kind, value);
        return again == o || o instanceof java.io.File && o.equals(again) ? value : null;
    }

    private static String locale(Locale l) {
        if (l.getScript().isEmpty() && !l.hasExtensions()) {
            String v = l.getLanguage() + "_" + l.getCountry() + "_" + l.getVariant();
            return l.equals(of("java.util.Locale", v)) ? v : null;
        }
        String tag = "#" + l.toLanguageTag();
        return l.equals(of("java.util.Locale", tag)) ? tag : null;
    }

    /** The object of a text; null if this JDK has none. */
    public static Object of(String text) {
        int at = text.indexOf('=');
        return of(text.substring(0, at), text.substring(at + 1));
    }

    private static Object of(String kind, String v) {
        try {
            return switch (kind) {
                case "java.lang.Boolean" -> Boolean.valueOf(v);
                case "java.lang.Byte" -> Byte.valueOf(v);
                case "java.lang.Short" -> Short.valueOf(v);
                case "java.lang.Character" -> Character.valueOf((char) Integer.parseInt(v));
                case "java.lang.Integer" -> Integer.valueOf(v);
                case "java.lang.Long" -> Long.valueOf(v);
                case "java.util.Currency" -> Currency.getInstance(v);
                case "java.util.Locale" -> localeOf(v);
                case "java.time.ZoneOffset" -> ZoneOffset.ofTotalSeconds(Integer.parseInt(v));
                case "java.time.ZoneRegion" -> ZoneId.of(v);
                case "java.time.temporal.WeekFields" -> WeekFields.of(DayOfWeek.valueOf(before(v)), Integer.parseInt(after(v)));
                case "java.lang.Character$UnicodeBlock" -> Character.UnicodeBlock.forName(v);
                case "java.util.regex.Pattern" -> Pattern.compile(after(v), Integer.parseInt(before(v)));
                case "java.io.File" -> new java.io.File(v);
                case "java.nio.file.Path" -> FileSystems.getDefault().getPath(v);
                case "java.nio.charset.Charset" -> Charset.forName(v);
                case "java.util.logging.Level" -> callStatic(kind, "parse", v);
                default -> null;
            };
        } catch (RuntimeException e) {
            return null;
        }
    }

    private static Locale localeOf(String v) {
        if (v.startsWith("#")) {
            return Locale.forLanguageTag(v.substring(1));
        }
        int a = v.indexOf('_');
        int b = v.indexOf('_', a + 1);
        return Locale.of(v.substring(0, a), v.substring(a + 1, b), v.substring(b + 1));
    }

    private static String before(String v) {
        return v.substring(0, v.indexOf(' '));
    }

    private static String after(String v) {
        return v.substring(v.indexOf(' ') + 1);
    }

    // java.logging is a module that a runtime may lack: by reflection.

    private static Object call(Object o, String method, Class<?> returns) {
        try {
            return returns.cast(o.getClass().getMethod(method).invoke(o));
        } catch (ReflectiveOperationException | RuntimeException e) {
            return null;
        }
    }

    private static Object callStatic(String kind, String method, String argument) {
        try {
            return Class.forName(kind).getMethod(method, String.class).invoke(null, argument);
        } catch (ReflectiveOperationException | RuntimeException e) {
            return null;
        }
    }
}
