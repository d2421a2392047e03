/**
 * The durable graph: which objects are durable, how they become so, how stores reach their replicas, how they come back, and how replicas
 * that nobody needs are freed. Source: RBP, chapters 4 and 5.
 */
package io.towa.graph;
