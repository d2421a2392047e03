package io.towa.graph;

import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

/** Reads JSON: maps, lists, strings without escapes, whole numbers, booleans, null. */
final class Json {
    private final String text;
    private int at;

    private Json(String text) {
        this.text = text;
    }

    @SuppressWarnings("unchecked")
    static Map<String, Object> object(String text) {
        Json j = new Json(text);
        Object o = j.value();
        j.space();
        if (j.at != text.length()) {
            throw j.wrong();
        }
        return (Map<String, Object>) o;
    }

    private IllegalArgumentException wrong() {
        return new IllegalArgumentException("not expected at " + at + ": " + text.substring(at));
    }

    private void space() {
        while (at < text.length() && Character.isWhitespace(text.charAt(at))) {
            at++;
        }
    }

    /** Whether this comes next, after space; then it is passed. */
    private boolean next(String s) {
        space();
        if (!text.startsWith(s, at)) {
            return false;
        }
        at += s.length();
        return true;
    }

    private void must(String s) {
        if (!next(s)) {
            throw wrong();
        }
    }

    private Object value() {
        if (next("{")) {
            Map<String, Object> all = new LinkedHashMap<>();
            if (next("}")) {
                return all;
            }
            do {
                String name = string();
                must(":");
                all.put(name, value());
            } while (next(","));
            must("}");
            return all;
        }
        if (next("[")) {
            List<Object> all = new ArrayList<>();
            if (next("]")) {
                return all;
            }
            do {
                all.add(value());
            } while (next(","));
            must("]");
            return all;
        }
        if (next("true")) {
            return true;
        }
        if (next("false")) {
            return false;
        }
        if (next("null")) {
            return null;
        }
        space();
        if (text.charAt(at) == '"') {
            return string();
        }
        int from = at;
        while (at < text.length() && (Character.isDigit(text.charAt(at)) || text.charAt(at) == '-')) {
            at++;
        }
        if (from == at) {
            throw wrong();
        }
        return Long.parseLong(text.substring(from, at));
    }

    private String string() {
        must("\"");
        int end = text.indexOf('"', at);
        String s = text.substring(at, end);
        if (s.indexOf('\\') >= 0) {
            throw wrong();
        }
        at = end + 1;
        return s;
    }
}
