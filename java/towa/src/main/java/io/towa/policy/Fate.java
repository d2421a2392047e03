package io.towa.policy;

import io.towa.pool.Layout;
import java.lang.reflect.Field;
import java.lang.reflect.Modifier;

/**
 * What becomes of a field, or of the instances of a class, when they are to be durable, and why: what {@link Policy} and the others of this package say, for a reader.
 *
 * <p>Always true: it follows from the class files alone, and runs no code of the program. Where only the object tells, the text says on what it depends.
 *
 * @param why may be empty where {@code kind} says it all
 */
public record Fate(Kind kind, String why) {
    /** How it ends. */
    public enum Kind {
        /** Part of the replica, field by field. */
        KEPT("kept"),
        /** By name: looked for when the pool is opened. */
        RESOLVED("resolved at load"),
        /** Null, or zero, after recovery. */
        LEFT_OUT("left out"),
        /** A store that would make it durable throws. */
        REFUSED("refused");

        private final String text;

        Kind(String text) {
            this.text = text;
        }

        @Override
        public String toString() {
            return text;
        }
    }

    /** Of the instances of {@code c}, by what its class is. */
    public static Fate of(Class<?> c) {
        if (c.isPrimitive()) {
            return new Fate(Kind.KEPT, "");
        }
        int form = Policy.form(c);
        if (form == Layout.FORM_ENUM) {
            return new Fate(Kind.RESOLVED, "by the constant's name");
        }
        if (form == Layout.FORM_CLASS) {
            return new Fate(Kind.RESOLVED, "by the class' name");
        }
        String refusal = Policy.refusal(c, false);
        if (refusal != null && !c.isArray() && Modifier.isAbstract(c.getModifiers()) && !Policy.isRefused(c)) {
            return new Fate(Kind.KEPT, declared(c));
        }
        if (Values.may(c)) {
            boolean some = refusal == null && (Number.class.isAssignableFrom(c) || c == Character.class || c == Boolean.class);
            return some ? new Fate(Kind.KEPT, "small values, of which the JDK has one object each, are resolved at load")
                : new Fate(Kind.RESOLVED, "by what it is called: this run's JDK makes it anew");
        }
        String found = Canonical.finder(c);
        String once = found == null ? "" : "where " + found + " gives the same object again, it is resolved at load, as Java serialises it";
        if (refusal != null) {
            return found == null ? new Fate(Kind.REFUSED, refusal) : new Fate(Kind.REFUSED, refusal + "; " + once);
        }
        return new Fate(Kind.KEPT, found != null ? once : declared(c));
    }

    /** What only the object in a field of type {@code c} tells. */
    private static String declared(Class<?> c) {
        if (c.isAnonymousClass()) {
            return "an anonymous class: found again by its code, so name it before its code changes";
        }
        if (c.isInterface() && c.isAnnotationPresent(FunctionalInterface.class)) {
            return "by the class of the object in it; " + Policy.LAMBDA;
        }
        Class<?> of = Numbered.element(c);
        // An interface is abstract, too; so is a primitive type.
        boolean open = Modifier.isAbstract(of.getModifiers()) && !of.isPrimitive() || of == Object.class;
        return open ? "by the class of the object in it" : "";
    }

    /** Of the instance field {@code f} of an instance of {@code c}. */
    public static Fate of(Field f, Class<?> c) {
        String leftOut = Fields.leftOut(f, c);
        if (leftOut != null) {
            return new Fate(Kind.LEFT_OUT, leftOut);
        }
        Fate of = of(f.getType());
        if (!Modifier.isTransient(f.getModifiers()) || f.getDeclaringClass().getClassLoader() == null) {
            return of;
        }
        String writer = Fields.writer(f.getDeclaringClass(), c);
        String why = writer != null ? "transient, but data: " + writer + " writes the serial form" : "transient, but final: nothing could set it again";
        return new Fate(of.kind, of.why.isEmpty() ? why : why + "; " + of.why);
    }

    /** Of the object that a static final field holds, where an object refers to it; null if it is not looked for. */
    public static Fate ofConstant(Field f) {
        Class<?> holder = f.getDeclaringClass();
        Class<?> type = f.getType();
        if (!Statics.mayHold(holder) || !Statics.mayHold(f) || !type.isArray() && !Statics.areConstants(type, holder)) {
            return null;
        }
        String name = holder.getName() + "#" + f.getName();
        if (type.isArray() || type == Object.class) {
            return new Fate(Kind.RESOLVED, "as the constant " + name + (type.isArray() ? ", if it is empty" : ", if it is a bare Object or of the same family"));
        }
        String refusal = Statics.refusal(name, type);
        return refusal != null ? new Fate(Kind.REFUSED, refusal) : new Fate(Kind.RESOLVED, "as the constant " + name);
    }

    /** Of a field that is marked as a durable root. */
    public static Fate ofRoot(Field f) {
        String refusal = Policy.rootRefusal(f, true);
        return refusal != null ? new Fate(Kind.REFUSED, refusal) : of(f.getType());
    }
}
