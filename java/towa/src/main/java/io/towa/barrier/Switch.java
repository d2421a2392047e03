package io.towa.barrier;

import jdk.internal.vm.annotation.ForceInline;

/**
 * Switches of the barriers that belong to no class group: one for writes through Unsafe (natives and array copies included), one for
 * static fields.
 *
 * <p>Always true: a switch is a method that returns a constant. It is turned on by redefining the class, once and for good
 * ({@code io.towa.agent.Groups}), so compiled code contains no test while it is off.
 */
final class Switch {
    private Switch() {}

    /** Unsafe, array copies, natives. */
    static final class Raw { private Raw() {} @ForceInline static boolean on() { return false; } }
    static final class Static { private Static() {} @ForceInline static boolean on() { return false; } }
}
