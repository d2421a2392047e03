package io.towa.barrier;

import jdk.internal.vm.annotation.ForceInline;

/**
 * Switches of the barriers that belong to no class group: one for each kind of array, one for writes through Unsafe (natives and
 * array copies included), one for static fields.
 *
 * <p>Always true: a switch is a method that returns a constant. It is turned on by redefining the class, once and for good
 * ({@code io.towa.agent.Groups}), so compiled code contains no test while it is off.
 */
final class Switch {
    private Switch() {}

    /** byte[] and boolean[]. */
    static final class B { private B() {} @ForceInline static boolean on() { return false; } }
    static final class C { private C() {} @ForceInline static boolean on() { return false; } }
    static final class S { private S() {} @ForceInline static boolean on() { return false; } }
    static final class I { private I() {} @ForceInline static boolean on() { return false; } }
    static final class J { private J() {} @ForceInline static boolean on() { return false; } }
    static final class F { private F() {} @ForceInline static boolean on() { return false; } }
    static final class D { private D() {} @ForceInline static boolean on() { return false; } }
    /** Arrays of references. */
    static final class L { private L() {} @ForceInline static boolean on() { return false; } }
    /** Unsafe, array copies, natives. */
    static final class Raw { private Raw() {} @ForceInline static boolean on() { return false; } }
    static final class Static { private Static() {} @ForceInline static boolean on() { return false; } }
}
