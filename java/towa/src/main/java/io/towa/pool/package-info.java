/** The pool's file: its superblock, the records of classes and roots, the allocator of replicas, undo log, commits. See docs/format.md. */
package io.towa.pool;
