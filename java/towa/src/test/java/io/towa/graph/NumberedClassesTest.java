package io.towa.graph;

import static io.towa.graph.Versions.get;
import static io.towa.graph.Versions.make;
import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNotSame;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertSame;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.towa.PoolException;
import io.towa.TowaOptions;
import io.towa.policy.Numbered;
import io.towa.pool.Records;
import java.nio.file.Path;
import java.util.Map;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

/** Anonymous and local classes get other numbers between two runs: their objects are found by the code, or by the method, or refused by name. */
class NumberedClassesTest {
    private static final String CHARGE = "new java.util.function.Supplier<String>() { public String get() { return \"charge\"; } }";
    private static final String REFUND = "new java.util.function.Supplier<String>() { public String get() { return \"refund\"; } }";
    private static final String PAY = "new java.util.function.Supplier<String>() { public String get() { return \"pay\"; } }";
    private static final String TAKEN = "Object first = " + REFUND + "; ";

    @TempDir
    Path dir;

    private Versions versions;

    @BeforeEach
    void none() {
        versions = new Versions(dir);
    }

    private Path save(String source) throws Exception {
        return SavedPool.save(make(versions.classes(source), "P"));
    }

    /** The object of class P, brought back with the classes of {@code now}; a second time, too, when the pool has their form. */
    private Object follow(Path p, String now) throws Exception {
        ClassLoader l = versions.classes(now);
        SavedPool.load(p, TowaOptions.DEFAULT.withLoader(l));
        Object again = SavedPool.load(p, TowaOptions.DEFAULT.withLoader(l));
        assertFalse(Recovery.last().rewritten());
        return again;
    }

    private void refuse(Path p, String now, String name) throws Exception {
        byte[] before = EvolutionTest.content(p);
        ClassLoader l = versions.classes(now);
        PoolException e = assertThrows(PoolException.class, () -> SavedPool.load(p, TowaOptions.DEFAULT.withLoader(l)));
        assertEquals(PoolException.Reason.CHANGED_CLASS, e.reason(), e.getMessage());
        assertTrue(e.getMessage().contains(name) && e.getMessage().contains("withRenamed"), e.getMessage());
        assertNull(SavedPool.root);
        assertArrayEquals(before, EvolutionTest.content(p));
    }

    private static String said(Object o, String field) throws Exception {
        return ((java.util.function.Supplier<?>) get(o, field)).get().toString();
    }

    @Test
    void anAnonymousClassIsFoundByItsCode() throws Exception {
        Path p = save("class P { Object o = " + CHARGE + "; }");
        assertEquals("charge", said(follow(p, "class P { " + TAKEN + "Object o = " + CHARGE + "; }"), "o"));
        assertEquals("charge", said(follow(p, "class P { Object o = " + CHARGE + "; }"), "o"), "and back");
        refuse(p, "class P { Object o = " + REFUND + "; }", "P$1");
        refuse(p, "class P { Object o; }", "P$1");
    }

    @Test
    void numbersAreExchanged() throws Exception {
        Path p = save("class P { Object a = " + CHARGE + "; Object b = " + REFUND + "; }");
        Object o = follow(p, "class P { Object b = " + REFUND + "; Object a = " + CHARGE + "; }");
        assertEquals("charge refund", said(o, "a") + " " + said(o, "b"));
    }

    @Test
    void classesOfEqualCodeStayTwo() throws Exception {
        Path p = save("class P { Object a = " + CHARGE + "; Object b = " + CHARGE + "; }");
        Object o = follow(p, "class P { " + TAKEN + "Object a = " + CHARGE + "; Object b = " + CHARGE + "; }");
        assertNotSame(get(o, "a").getClass(), get(o, "b").getClass());
        assertEquals("charge charge", said(o, "a") + " " + said(o, "b"));
        refuse(p, "class P { " + TAKEN + "Object a = " + CHARGE + "; Object b; }", "P$");
    }

    @Test
    void whatTheProgramAcceptsIsTheClass() throws Exception {
        Path p = save("class P { Object o = " + CHARGE + "; }");
        ClassLoader l = versions.classes("class P { Object o = " + PAY + "; }");
        TowaOptions accepts = TowaOptions.DEFAULT.withLoader(l).withRenamed(Map.of("P$1", "P$1"));
        assertEquals("pay", said(SavedPool.load(p, accepts), "o"));
        assertEquals("pay", said(SavedPool.load(p, TowaOptions.DEFAULT.withLoader(l)), "o"), "once is enough");
        assertEquals("pay", said(follow(p, "class P { " + TAKEN + "Object o = " + PAY + "; }"), "o"));
        // Left in the program, it would make another class of the one that has the number now.
        ClassLoader later = versions.classes("class P { " + TAKEN + "Object second; Object o = " + PAY + "; }");
        TowaOptions stale = TowaOptions.DEFAULT.withLoader(later).withRenamed(Map.of("P$2", "P$1"));
        PoolException e = assertThrows(PoolException.class, () -> SavedPool.load(p, stale));
        assertTrue(e.getMessage().contains("take that mapping back"), e.getMessage());
    }

    @Test
    void aClassAloneThatIsAcceptedOrHasOtherFieldsIsKnownLater() throws Exception {
        Path p = save("class P { Object type = (" + CHARGE + ").getClass(); }");
        String first = "class P { Object type; Object first() { return %s; } Object second() { return %s; } }";
        TowaOptions accepts = TowaOptions.DEFAULT.withLoader(versions.classes("class P { Object type; Object first() { return " + PAY + "; } }"))
            .withRenamed(Map.of("P$1", "P$1"));
        SavedPool.load(p, accepts);
        assertEquals("P$2", ((Class<?>) get(follow(p, first.formatted(REFUND, PAY)), "type")).getName());
        String local = "class P { Object type = make(); Object make() { class L { %s } return L.class; } }";
        p = save(local.formatted(""));
        follow(p, local.formatted("int more;"));
        String later = "class P { Object type; Object other() { class L { int other; } return L.class; } Object make() { class L { int more; } return L.class; } }";
        assertEquals("P$2L", ((Class<?>) get(follow(p, later), "type")).getName());
    }

    @Test
    void aConstantOfALocalClassFollowsIt() throws Exception {
        String method = "Object make() { record L(int n) { static final L NONE = new L(0); } return L.NONE; } }";
        Path p = save("class P { Object o = make(); " + method);
        Object o = follow(p, "class P { Object o; Object other() { record L(int n) { static final L NONE = new L(7); } return L.NONE; } " + method);
        assertEquals("L[n=0]", get(o, "o").toString());
    }

    @Test
    void genericTypesAreCode() throws Exception {
        String token = "new java.util.ArrayList<%s>() { }";
        Path p = save("class P { Object o = " + token.formatted("String") + "; }");
        Object o = follow(p, "class P { Object first = " + token.formatted("Integer") + "; Object o = " + token.formatted("String") + "; }");
        assertEquals("java.util.ArrayList<java.lang.String>", get(o, "o").getClass().getGenericSuperclass().toString());
    }

    @Test
    void codeThatRefersToNumberedClassesIsComparedByTheirCode() throws Exception {
        String outer = "new java.util.function.Supplier<String>() { public String get() { return (String) new Object() { Object say() { return \"%s\"; } }.say(); } }";
        Path p = save("class P { Object o = " + outer.formatted("in") + "; }");
        assertEquals("in", said(follow(p, "class P { " + TAKEN + "Object o = " + outer.formatted("in") + "; }"), "o"));
        refuse(p, "class P { Object o = " + outer.formatted("other") + "; }", "P$");
    }

    @Test
    void aClassInsideFollowsTheOneAroundIt() throws Exception {
        String inside = "new java.util.function.Supplier<Object>() { public Object get() { return new java.util.function.Supplier<String>() {"
            + " public String get() { return \"inside\"; } }; } }.get();";
        Path p = save("class P { Object o = " + inside + " }");
        assertEquals("P$1$1", get(SavedPool.load(p, TowaOptions.DEFAULT.withLoader(versions.classes("class P { Object o = " + inside + " }"))), "o").getClass().getName());
        Object o = follow(p, "class P { " + TAKEN + "Object o = " + inside + " }");
        assertEquals("inside", said(o, "o"));
        assertEquals("P$2$1", get(o, "o").getClass().getName());
    }

    @Test
    void aLocalClassFollowsItsMethodAndMayChange() throws Exception {
        Path p = save("class P { Object o = make(); Object make() { record L(int n) { } return new L(5); } }");
        Object o = follow(p, "class P { Object o; Object other() { record L(String s) { } return new L(\"\"); }"
            + " Object make() { record L(int n, String more) { } return new L(6, \"\"); } }");
        assertEquals("L[n=5, more=null]", get(o, "o").toString());
        assertEquals("P$2L", get(o, "o").getClass().getName());
        refuse(p, "class P { Object o; Object other() { record L(int n) { void more() { } } return new L(5); } }", "P$2L");
        // What is stored with a class that has changed is of the same class.
        p = save("class P { Object o = make(); Object[] a; Object make() { record L(int n) { } return new L(5); } }");
        Object changed = SavedPool.load(p, TowaOptions.DEFAULT.withLoader(
            versions.classes("class P { Object o; Object[] a; Object make() { record L(int n) { String more() { return \"\"; } } return new L(6); } }")));
        assertEquals("L[n=5]", get(changed, "o").toString());
    }

    @Test
    void ofSeveralLocalClassesOfOneNameTheCodeTells() throws Exception {
        String two = "Object make() { if (hashCode() == 1) { class L { String s() { return \"%s\"; } } return new L(); }"
            + " class L { @Override public String toString() { return \"second\"; } } return new L(); } }";
        Path p = save("class P { Object o = make(); " + two.formatted("first"));
        assertEquals("second", get(follow(p, "class P { Object o; " + two.formatted("changed")), "o").toString());
        refuse(p, "class P { Object o; Object make() { class L { String s() { return \"first\"; } } return new L(); } }", "P$2L");
    }

    @Test
    void membersArraysAndClassesFollow() throws Exception {
        String local = "class L { class In { String s = \"in\"; } } ";
        String body = local + "o = new L().new In(); array = new L[] {new L()}; type = L[].class; }";
        String fields = "class P { Object o; Object array; Object type; ";
        Path p = save(fields + "P() { " + body + " }");
        Object o = follow(p, fields + "void other() { " + local + " } P() { " + body + " }");
        assertEquals("P$2L$In", get(o, "o").getClass().getName());
        assertEquals("[LP$2L;", get(o, "array").getClass().getName());
        assertSame(get(o, "array").getClass(), get(o, "type"));
    }

    @Test
    void aClassAloneFollowsOrIsRefused() throws Exception {
        Path p = save("class P { Object type = (" + CHARGE + ").getClass(); }");
        // The fields of P stay as they are, so that it is no reason to write the pool anew.
        String methods = "class P { Object type; Object first() { return " + REFUND + "; } Object second() { return %s; } }";
        assertEquals("P$2", ((Class<?>) get(follow(p, methods.formatted(CHARGE)), "type")).getName());
        refuse(p, methods.formatted(PAY), "P$2");
        assertEquals("P$2", ((Class<?>) get(follow(p, methods.formatted(CHARGE)), "type")).getName());
    }

    @Test
    void ofTwoClassesThatWereSavedUnderOneNameTheRecordTellsAndNotTheName() throws Exception {
        ClassLoader one = versions.classes("class P { Object o = " + CHARGE + "; }");
        ClassLoader two = versions.classes("class P { Object o = " + REFUND + "; }");
        Records.ClassRecord charge = record(1, one);
        Records.ClassRecord refund = record(2, two);
        NumberedClasses now = new NumberedClasses("pool", java.util.List.of(charge, refund), Map.of(),
            versions.classes("class P { " + TAKEN + "Object o = " + CHARGE + "; }"));
        assertEquals("P$2 P$1", now.name(charge) + " " + now.name(refund));
        assertNull(now.name("P$1"), "either");
        assertEquals("P$7", now.name("P$7"), "not known");
    }

    private static Records.ClassRecord record(int index, ClassLoader l) throws Exception {
        return new Records.ClassRecord(0, 0, index, 0, 24, "P$1", java.util.List.of(), Numbered.origin(l.loadClass("P$1")), "");
    }

    @Test
    void otherWaysToWriteTheSameCodeDoNotCount() throws Exception {
        Path p = save("class P { Object o = " + CHARGE + "; }");
        follow(p, "class P { /* more\n\n lines */ Object o = new java.util.function.Supplier<String>() {\n @Deprecated public String get() {\n return \"charge\"; } }; }");
    }
}
