package towabench;

import java.util.List;
import java.util.Map;

/** Maps, lists, texts and numbers as JSON. What is not a number is null: a figure that was not taken. */
final class Json {
    private Json() {}

    static String of(Object value) {
        StringBuilder out = new StringBuilder();
        write(out, value, 0);
        return out.append('\n').toString();
    }

    private static void write(StringBuilder out, Object value, int depth) {
        if (value instanceof Map<?, ?> map) {
            boolean first = true;
            out.append('{');
            for (Map.Entry<?, ?> e : map.entrySet()) {
                line(out, first, depth + 1);
                text(out, e.getKey().toString());
                out.append(": ");
                write(out, e.getValue(), depth + 1);
                first = false;
            }
            end(out, first, depth, '}');
        } else if (value instanceof List<?> list) {
            boolean flat = list.stream().noneMatch(v -> v instanceof Map || v instanceof List);
            boolean first = true;
            out.append('[');
            for (Object v : list) {
                if (flat) {
                    out.append(first ? "" : ", ");
                } else {
                    line(out, first, depth + 1);
                }
                write(out, v, depth + 1);
                first = false;
            }
            end(out, first || flat, depth, ']');
        } else if (value instanceof Double d) {
            out.append(d.isNaN() || d.isInfinite() ? "null" : number(d));
        } else if (value == null || value instanceof Number || value instanceof Boolean) {
            out.append(value);
        } else {
            text(out, value.toString());
        }
    }

    /** Six digits are more than any of these figures deserves. */
    private static String number(double d) {
        return d == Math.rint(d) && Math.abs(d) < 1e15 ? Long.toString((long) d)
            : new java.math.BigDecimal(d).round(new java.math.MathContext(6)).stripTrailingZeros().toPlainString();
    }

    private static void line(StringBuilder out, boolean first, int depth) {
        out.append(first ? "\n" : ",\n").append("  ".repeat(depth));
    }

    private static void end(StringBuilder out, boolean flat, int depth, char bracket) {
        if (!flat) {
            out.append('\n').append("  ".repeat(depth));
        }
        out.append(bracket);
    }

    private static void text(StringBuilder out, String s) {
        out.append('"');
        for (char c : s.toCharArray()) {
            if (c == '"' || c == '\\') {
                out.append('\\').append(c);
            } else if (c < ' ') {
                out.append(String.format("\\u%04x", (int) c));
            } else {
                out.append(c);
            }
        }
        out.append('"');
    }
}
