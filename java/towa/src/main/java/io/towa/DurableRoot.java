package io.towa;

import java.lang.annotation.Documented;
import java.lang.annotation.ElementType;
import java.lang.annotation.Retention;
import java.lang.annotation.RetentionPolicy;
import java.lang.annotation.Target;

/**
 * Marks a static field of reference type, not final: every object reachable from it is durable, with no call to store or flush.
 *
 * <p>Takes effect between {@link Towa#open} and {@link Towa#close}. At {@code open} a field that the pool knows gets the value it
 * had; one that the pool does not know keeps its own, which becomes durable. So what the class' own initialiser stores counts only until the pool has a
 * value, also where that initialiser opens the pool first.
 *
 * <p>Source: RBP, chapter 3, {@code @durableroot}.
 */
@Documented
@Retention(RetentionPolicy.RUNTIME)
@Target(ElementType.FIELD)
public @interface DurableRoot {}
