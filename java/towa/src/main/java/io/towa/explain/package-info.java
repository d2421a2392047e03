/** {@code java -jar towa.jar explain}: says of classes what {@link io.towa.policy} will do with their objects, before a pool exists. */
package io.towa.explain;
