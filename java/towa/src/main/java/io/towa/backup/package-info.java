/**
 * What a program does for {@code towa backup}: it listens beside its pool, remembers which pages change while the tool copies the file, and sends those.
 */
package io.towa.backup;
