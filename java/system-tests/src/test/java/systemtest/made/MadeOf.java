package systemtest.made;

import io.towa.DurableRoot;
import io.towa.NotDurable;
import io.towa.NotDurableException;
import io.towa.Towa;
import java.io.ObjectInputStream;
import java.io.Serializable;
import java.nio.charset.StandardCharsets;
import java.nio.file.Path;
import java.time.ZoneId;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Currency;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.regex.Pattern;
import systemtest.harness.Entity;

/** Stores one object of each kind in one run, and looks at it in the next. Prints a line for each that is another than it was: {@code BAD}. */
final class MadeOf {
    @DurableRoot
    private static Map<String, Object> root;

    // ---- transient fields

    static class Base {
        transient int[] content = {1, 2, 3};
    }

    static class Written extends Base implements Serializable {
        private void readObject(ObjectInputStream in) {}
    }

    static final class Below extends Written {
        transient Thread worker = Thread.currentThread();
        transient int cached = 7;
    }

    static final class Replaced implements Serializable {
        final transient String content = "a" + hashCode();

        private Object writeReplace() {
            return new Proxy(content);
        }
    }

    record Proxy(String content) implements Serializable {}

    static final class Plain implements Serializable {
        transient Thread worker = Thread.currentThread();
        @NotDurable
        Thread other = Thread.currentThread();
        final int kept = 3;
    }

    /** A node of a library's structure, which writes its entries itself. */
    record Chained(Link first) {}

    static final class Link implements Serializable {
        final int value;
        private final transient Link next;

        Link(int value, Link next) {
            this.value = value;
            this.next = next;
        }
    }

    /** A view of another object, as libraries cache them. */
    static final class View {
        final transient int[] of;

        View(int[] of) {
            this.of = of;
        }
    }

    // ---- constants

    interface Shape {
        Shape NONE = new Shape() {};
    }

    static class Status {
        static final Object DELETED = new Object();
        static final Status NEW = new Status("new");
        static final Status DONE = new Special("done");
        static final int[] EMPTY = {};
        final String name;
        final Object mark;

        Status(String name) {
            this.name = name;
            mark = DELETED;
        }
    }

    static final class Special extends Status {
        Special(String name) {
            super(name);
        }
    }

    /** Its initialiser runs when the constant is asked for, long after another circle was seen. */
    interface Round {
        Round UNIT = new Circle(1);
    }

    record Circle(int radius) implements Round {}

    static final class Account {
        static final Account BANK = new Account();
        long balance;
    }

    /** One instance for each name, as loggers and symbols are. */
    static final class Symbol implements Serializable {
        private static final Map<String, Symbol> ALL = new ConcurrentHashMap<>();
        final String name;
        private int uses;

        private Symbol(String name) {
            this.name = name;
        }

        static Symbol of(String name) {
            return ALL.computeIfAbsent(name, Symbol::new);
        }

        private Object readResolve() {
            return of(name);
        }
    }

    static final class Chronology implements Serializable {
        private static final Map<String, Chronology> ALL = new ConcurrentHashMap<>();
        private final transient String zone;

        private Chronology(String zone) {
            this.zone = zone;
        }

        static Chronology of(String zone) {
            return ALL.computeIfAbsent(zone, Chronology::new);
        }

        private Object writeReplace() {
            return new Stub(zone);
        }
    }

    record Stub(String zone) implements Serializable {
        private Object readResolve() {
            return Chronology.of(zone);
        }
    }

    /** Gives a new instance in place of what it reads: an ordinary value, kept by its fields. */
    static final class Money implements Serializable {
        final int cents;

        Money(int cents) {
            this.cents = cents;
        }

        private Object readResolve() {
            return new Money(cents);
        }
    }

    // ---- keys

    enum Colour { RED, GREEN, BLUE, WHITE }

    /** A table of its own, as each library has one: by hash codes, and made anew by no recovery. */
    static final class Table {
        final Object[] keys = new Object[64];

        boolean has(Object key, boolean put) {
            int i = key.hashCode() & 63;
            while (keys[i] != null && !keys[i].equals(key)) {
                i = i + 1 & 63;
            }
            boolean had = keys[i] != null;
            if (put) {
                keys[i] = key;
            }
            return had;
        }
    }

    private MadeOf() {}

    /** What must be the same object in each run. */
    private static Map<String, Object> constants() {
        Map<String, Object> all = new HashMap<>();
        all.put("NEW", Status.NEW);
        all.put("DONE", Status.DONE);
        all.put("DELETED", Status.DELETED);
        all.put("EMPTY", Status.EMPTY);
        all.put("NONE", Shape.NONE);
        all.put("symbol", Symbol.of("a"));
        all.put("chronology", Chronology.of("Paris"));
        all.put("true", Boolean.TRUE);
        all.put("int", 5);
        all.put("char", 'a');
        all.put("order", String.CASE_INSENSITIVE_ORDER);
        all.put("currency", Currency.getInstance("EUR"));
        all.put("locale", Locale.of("sv", "SE"));
        all.put("charset", StandardCharsets.UTF_8);
        all.put("block", Character.UnicodeBlock.BASIC_LATIN);
        all.put("level", java.util.logging.Level.INFO);
        return all;
    }

    /** What must be equal in each run. */
    private static Map<String, Object> values() {
        Map<String, Object> all = new HashMap<>();
        all.put("path", Path.of("/tmp/a b"));
        all.put("file", new java.io.File("x"));
        all.put("zone", ZoneId.of("Europe/Berlin"));
        all.put("swiss", Locale.forLanguageTag("zh-Hant-TW"));
        all.put("big", 5_000);
        return all;
    }

    private static void make() {
        root = new HashMap<>();
        root.put("constants", constants());
        root.put("values", values());
        root.put("below", new Below());
        Replaced replaced = new Replaced();
        root.put("replaced", replaced);
        root.put("replaced content", replaced.content);
        root.put("plain", new Plain());
        root.put("view", new View(new int[] {4}));
        root.put("circle", new Circle(2));
        root.put("unit", Round.UNIT);
        root.put("chained", new Chained(new Link(1, new Link(2, null))));
        root.put("pattern", Pattern.compile("a.b", Pattern.DOTALL));
        Money money = new Money(5);
        root.put("money", List.of(money, money));
        Set<Entity> entities = new HashSet<>();
        for (int i = 0; i < 20; i++) {
            entities.add(new Entity(i));
        }
        root.put("entities", entities);
        Table table = new Table();
        for (Colour c : Colour.values()) {
            table.has(c, true);
        }
        root.put("table", table);
        try {
            root.put("bank", Account.BANK);
            say("a constant with a state was not refused");
        } catch (NotDurableException e) {
            if (!e.getMessage().contains("Account#BANK") || !e.getMessage().contains("balance")) {
                say("not named: " + e.getMessage());
            }
        }
    }

    private static void say(String what) {
        System.out.println("BAD " + what);
    }

    private static void check(String what, boolean good) {
        if (!good) {
            say(what);
        }
    }

    @SuppressWarnings("unchecked")
    private static void look() {
        Map<String, Object> kept = (Map<String, Object>) root.get("constants");
        constants().forEach((k, v) -> check("constant " + k, kept.get(k) == v));
        Map<String, Object> equal = (Map<String, Object>) root.get("values");
        values().forEach((k, v) -> check("value " + k + " " + equal.get(k), v.equals(equal.get(k))));
        check("the mark of a status", Status.NEW.mark == Status.DELETED);
        Below below = (Below) root.get("below");
        check("content that a subclass writes", Arrays.equals(below.content, new int[] {1, 2, 3}));
        check("a transient field of a class below", below.worker == null && below.cached == 0);
        check("content of what is replaced", root.get("replaced content").equals(((Replaced) root.get("replaced")).content));
        Plain plain = (Plain) root.get("plain");
        check("what is left out", plain.worker == null && plain.other == null && plain.kept == 3);
        check("a constant that was made late", root.get("unit") == Round.UNIT && ((Circle) root.get("circle")).radius == 2);
        check("a final field of a node", ((Chained) root.get("chained")).first.next.value == 2);
        check("a view's final field", ((View) root.get("view")).of[0] == 4);
        Pattern p = (Pattern) root.get("pattern");
        check("a pattern", p.flags() == Pattern.DOTALL && p.matcher("a\nb").matches());
        List<Money> money = (List<Money>) root.get("money");
        check("a value that is replaced", money.get(0) == money.get(1) && money.get(0).cents == 5);
        Set<Entity> entities = (Set<Entity>) root.get("entities");
        for (int i = 0; i < 20; i++) {
            check("entity " + i, entities.contains(new Entity(i)));
        }
        for (Colour c : Colour.values()) {
            check("colour " + c, ((Table) root.get("table")).has(c, false));
        }
    }

    /** A store to a transient field that is data is mirrored. */
    private static void change() {
        Below below = (Below) root.get("below");
        below.content = new int[] {1, 2, 3};
        check("a store to it", Towa.isDurable(below.content));
    }

    public static void main(String[] args) {
        // The program has asked for its constants' hashes before the pool is open.
        new HashSet<>(List.of(Colour.values())).hashCode();
        Towa.open(Path.of(args[0]));
        if (root == null) {
            make();
        } else {
            look();
            change();
        }
        new ArrayList<>(Towa.verify()).forEach(MadeOf::say);
        System.out.println("done");
        // As a kill would leave it.
        Runtime.getRuntime().halt(0);
    }
}
