package io.towa.explain;

import io.towa.DurableRoot;
import io.towa.policy.Fate;
import java.lang.reflect.Field;
import java.lang.reflect.Modifier;
import java.util.ArrayList;
import java.util.List;

/**
 * What becomes of the objects of one class, field by field.
 *
 * @param fate of an instance
 * @param lines its fields in the order in which a replica has them, then what its static fields hold
 */
record Report(Class<?> of, Fate fate, List<Line> lines) {
    /** One field: {@code kind} is field, constant or root; {@code name} has its class before it if another one declares it. */
    record Line(String kind, String name, Class<?> type, Fate fate) {}

    static Report of(Class<?> c) {
        List<Line> lines = new ArrayList<>();
        Fate fate = Fate.of(c);
        if (fate.kind() == Fate.Kind.KEPT && !c.isInterface()) {
            fields(c, c, lines);
        }
        for (Field f : c.getDeclaredFields()) {
            boolean isRoot = f.isAnnotationPresent(DurableRoot.class);
            boolean mayBeConstant = Modifier.isStatic(f.getModifiers()) && !f.isSynthetic();
            Fate of = isRoot ? Fate.ofRoot(f) : mayBeConstant ? Fate.ofConstant(f) : null;
            if (of != null) {
                lines.add(new Line(isRoot ? "root" : "constant", f.getName(), f.getType(), of));
            }
        }
        return new Report(c, fate, lines);
    }

    private static void fields(Class<?> k, Class<?> c, List<Line> lines) {
        if (k == null || k == Object.class) {
            return;
        }
        fields(k.getSuperclass(), c, lines);
        for (Field f : k.getDeclaredFields()) {
            if (!Modifier.isStatic(f.getModifiers())) {
                lines.add(new Line("field", k == c ? f.getName() : k.getName() + "." + f.getName(), f.getType(), Fate.of(f, c)));
            }
        }
    }

    /** How much of it is refused. */
    int refused() {
        int n = fate.kind() == Fate.Kind.REFUSED ? 1 : 0;
        for (Line l : lines) {
            n += l.fate.kind() == Fate.Kind.REFUSED ? 1 : 0;
        }
        return n;
    }

    /** For a reader: a line for the class, one for each field. */
    void print(Appendable out) throws java.io.IOException {
        out.append(of.getTypeName()).append(": ").append(text(fate)).append('\n');
        for (Line l : lines) {
            String what = (l.kind.equals("field") ? "" : l.kind + " ") + l.type.getTypeName() + " " + l.name;
            out.append(String.format("  %-16s  %s%s\n", l.fate.kind(), what, l.fate.why().isEmpty() ? "" : ": " + l.fate.why()));
        }
    }

    private static String text(Fate f) {
        return f.why().isEmpty() ? f.kind().toString() : f.kind() + ", " + f.why();
    }

    void json(StringBuilder to) {
        to.append("{\"class\":");
        quote(of.getTypeName(), to);
        json(fate, to);
        to.append(",\"fields\":[");
        for (int i = 0; i < lines.size(); i++) {
            Line l = lines.get(i);
            to.append(i == 0 ? "{\"kind\":" : ",{\"kind\":");
            quote(l.kind, to);
            to.append(",\"name\":");
            quote(l.name, to);
            to.append(",\"type\":");
            quote(l.type.getTypeName(), to);
            json(l.fate, to);
            to.append('}');
        }
        to.append("]}");
    }

    private static void json(Fate f, StringBuilder to) {
        to.append(",\"fate\":");
        quote(f.kind().toString(), to);
        to.append(",\"why\":");
        quote(f.why(), to);
    }

    static void quote(String s, StringBuilder to) {
        to.append('"');
        for (int i = 0; i < s.length(); i++) {
            char c = s.charAt(i);
            if (c == '"' || c == '\\') {
                to.append('\\').append(c);
            } else if (c < ' ' || Character.isISOControl(c) || Character.getType(c) == Character.FORMAT || Character.isSurrogate(c)) {
                to.append(String.format("\\u%04x", (int) c));
            } else {
                to.append(c);
            }
        }
        to.append('"');
    }
}
