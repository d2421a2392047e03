package io.towa;

import java.lang.annotation.Documented;
import java.lang.annotation.ElementType;
import java.lang.annotation.Retention;
import java.lang.annotation.RetentionPolicy;
import java.lang.annotation.Target;

/**
 * Marks an instance field that is no part of the durable object: null, or zero, after recovery. It may refer to anything. {@code transient} says the same, but
 * for classes that write their serial form themselves (readObject and the like), where it is about that form only.
 */
@Documented
@Retention(RetentionPolicy.RUNTIME)
@Target(ElementType.FIELD)
public @interface NotDurable {}
