/**
 * Where durable bytes live. The only package that writes to the pool's mapping, orders what it writes, and pushes it out of the caches.
 */
package io.towa.medium;
