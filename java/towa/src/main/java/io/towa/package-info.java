/**
 * Durable objects: what is reachable from a static field marked {@link io.towa.DurableRoot} survives the process. {@link io.towa.Towa} opens a pool;
 * {@link io.towa.OnDemand} holds what is to be brought back only when it is asked for. The program is started with the agent:
 * {@code java -javaagent:towa.jar ...}.
 */
package io.towa;
