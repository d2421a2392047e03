package io.towa.policy;

import io.towa.agent.Agent;
import io.towa.agent.NumberedNames;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.function.Predicate;

/**
 * Classes that the compiler has numbered: anonymous ones ({@code Shop$1}), local ones ({@code Shop$1Local}), and their members. The number says how many came before in
 * the source file, so after a change of the file it may stand for another class. A class record therefore holds the origin of such a class, by which the next run finds it.
 *
 * <pre>
 *   anonymous   a digest of its code: HEXADECIMAL. Its number is free to change, its code is not
 *   local       the method it is declared in, if it is the only class of its name there: - METHOD. It may change as a named class does. Else a digest
 * </pre>
 *
 * <p>Always true: a class that this gives for an origin has the same code, or is the only local class of its name in its method, as the saved one was. A class to which
 * the compiler gives a number in another way than {@code javac} and {@code kotlinc} give them to these two kinds has no origin: it is found by its name.
 */
public final class Numbered {
    /** Numbers that are looked at without finding a class: compilers count on, but leave out classes in code that cannot be reached. */
    private static final int GAP = 16;
    /** In front of the method that has one class of that name. */
    private static final String UNIQUE = "- ";
    private static final int MOST = 1 << 16;

    private Numbered() {}

    /** What the compiler's number in a binary name applies to: {@code prefix + number + simple + rest}. {@code simple} is empty for anonymous classes. */
    private record Name(String prefix, String simple, String rest) {
        /** @return null if there is no number in {@code name} */
        static Name of(String name) {
            for (int at = name.lastIndexOf('$'); at > 0; at = name.lastIndexOf('$', at - 1)) {
                int end = at + 1;
                while (end < name.length() && name.charAt(end) >= '0' && name.charAt(end) <= '9') {
                    end++;
                }
                if (end > at + 1) {
                    int rest = name.indexOf('$', end);
                    rest = rest < 0 ? name.length() : rest;
                    return new Name(name.substring(0, at + 1), name.substring(end, rest), name.substring(rest));
                }
            }
            return null;
        }

        String with(int number) {
            return prefix + number + simple;
        }
    }

    /** The part of a binary name that the number is in: of {@code Shop$1$Member} it is {@code Shop$1}. The whole name if there is no number. */
    public static String base(String name) {
        Name n = Name.of(name);
        return n == null ? name : name.substring(0, name.length() - n.rest.length());
    }

    /** The anonymous or local class that {@code c} is, or is a member of; null: none. */
    private static Class<?> numbered(Class<?> c) {
        if (!NumberedNames.mayBe(c.getName())) {
            return null;
        }
        try {
            Class<?> k = c;
            while (k != null && !k.isAnonymousClass() && !k.isLocalClass()) {
                k = k.getEnclosingClass();
            }
            return k == null || !base(c.getName()).equals(k.getName()) ? null : k;
        } catch (LinkageError e) {
            // What the class says of its enclosing ones does not hold. Its name is all that there is.
            return null;
        }
    }

    /** The class of an array's innermost elements; other classes as they are. */
    public static Class<?> element(Class<?> c) {
        Class<?> of = c;
        while (of.isArray()) {
            of = of.getComponentType();
        }
        return of;
    }

    /** Whether {@code c} is an anonymous or local class, or a member of one. */
    public static boolean is(Class<?> c) {
        return numbered(c) != null;
    }

    /** The origin of {@code c}, of an array's elements; empty for classes whose names say what they are. */
    public static String origin(Class<?> c) {
        Class<?> k = numbered(element(c));
        return k == null ? "" : originOf(k);
    }

    private static String originOf(Class<?> k) {
        Files files = new Files(k.getClassLoader(), new HashMap<>());
        byte[] file = files.read(k.getName());
        CodeDigest.Code code = files.digest(file);
        Name n = Name.of(k.getName());
        if (code != null && !n.simple.isEmpty() && isOnly(n, code.method(), files)) {
            return UNIQUE + code.method();
        }
        // The file may have been written anew since the class was loaded.
        boolean asLoaded = file != null && (k.getClassLoader() == null || Agent.isDefinedFrom(k, file));
        CodeDigest.Code loaded = asLoaded ? null : files.digest(Agent.classFile(k));
        code = loaded != null ? loaded : code;
        return code == null ? "" : Long.toHexString(code.digest());
    }

    /** Whether a local class can be found by its method. Initialisers share no method's name, and those of lambdas are numbered, too. */
    private static boolean isOnly(Name n, String method, Files files) {
        return !method.isEmpty() && !method.startsWith("lambda$") && files.candidates(n, c -> c.method().equals(method)).size() == 1;
    }

    /**
     * The names that the class of an origin may have today, the most likely first: its own, if that has not changed.
     *
     * @param base what it was called
     */
    public static List<String> find(String base, String origin, ClassLoader loader) {
        Files files = new Files(loader, new HashMap<>());
        Name n = Name.of(base);
        if (n == null) {
            return List.of();
        }
        if (origin.startsWith(UNIQUE)) {
            List<String> there = files.candidates(n, c -> c.method().equals(origin.substring(UNIQUE.length())));
            return there.size() == 1 ? there : List.of();
        }
        Predicate<CodeDigest.Code> alike = c -> Long.toHexString(c.digest()).equals(origin);
        CodeDigest.Code own = files.code(base);
        return own != null && alike.test(own) || isLoadedAs(base, origin, files) ? List.of(base) : files.candidates(n, alike);
    }

    /** Whether the class of that name has the digest as it is loaded: where it has no file of its own, or another agent changes each class. */
    private static boolean isLoadedAs(String name, String digest, Files files) {
        try {
            CodeDigest.Code code = files.digest(Agent.classFile(Class.forName(name, false, files.loader)));
            return code != null && Long.toHexString(code.digest()).equals(digest);
        } catch (ClassNotFoundException | LinkageError e) {
            return false;
        }
    }

    /** Class files as a loader finds them, and what those say that were read. */
    private record Files(ClassLoader loader, Map<String, Optional<CodeDigest.Code>> known) {
        byte[] read(String name) {
            return ClassFiles.read(loader, name);
        }

        /** What the file of a class says; null if there is none, or it cannot be read. */
        CodeDigest.Code code(String name) {
            Optional<CodeDigest.Code> code = known.get(name);
            if (code == null) {
                code = Optional.ofNullable(digest(read(name)));
                known.put(name, code);
            }
            return code.orElse(null);
        }

        CodeDigest.Code digest(byte[] file) {
            try {
                return file == null ? null : CodeDigest.of(file, this::read);
            } catch (RuntimeException e) {
                return null;
            }
        }

        /** The classes there are whose names differ from {@code n} in the number only, and whose code passes. If the class around it is numbered, also those of the others there. */
        List<String> candidates(Name n, Predicate<CodeDigest.Code> passes) {
            List<String> all = new ArrayList<>();
            String around = n.prefix.substring(0, n.prefix.length() - 1);
            Name outer = Name.of(around);
            if (outer == null) {
                collect(n, passes, all);
                return all;
            }
            List<String> arounds = candidates(outer, c -> true);
            for (int i = 0; i < arounds.size(); i++) {
                collect(new Name(arounds.get(i) + outer.rest + "$", n.simple, ""), passes, all);
            }
            return all;
        }

        private void collect(Name n, Predicate<CodeDigest.Code> passes, List<String> all) {
            for (int number = 1, missing = 0; missing < GAP && number < MOST; number++) {
                CodeDigest.Code code = code(n.with(number));
                missing = code == null ? missing + 1 : 0;
                if (code != null && passes.test(code)) {
                    all.add(n.with(number));
                }
            }
        }
    }
}
