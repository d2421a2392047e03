/**
 * What the flight recorder (JFR) is told: {@code io.towa.Promotion}, {@code Recovery}, {@code Collection}, {@code Commit}, {@code Refused}.
 *
 * <p>{@link io.towa.events.Events} is all that the rest of the library calls; it refers to nothing of JFR, which a runtime may lack, and whose
 * classes take long to load. The others are loaded when JFR is.
 */
package io.towa.events;
