/*
 * towa_tx.h - durable transactions and durable ordered maps, for C.
 *
 * A pool of transactions is a directory with a heap in it, like that of towa.h, but with another bargain: nothing is lost. A
 * transaction is durable when towa_dtx_run returns. (In towa.h it is durable within an interval, and cheaper.)
 *
 *     static int transfer(towa_dtx *tx, void *arg)          runs as one transaction, in hardware where there is RTM
 *     {
 *         uint64_t from, to;
 *         int rc;
 *         if ((rc = towa_dtx_read(tx, &accounts[0], &from)) || (rc = towa_dtx_read(tx, &accounts[1], &to)))
 *             return rc;                                    a call that failed: pass on what it gave
 *         if (from < 10)
 *             return 1;                                     positive: the program's own reason to abort
 *         if ((rc = towa_dtx_write(tx, &accounts[0], from - 10)))
 *             return rc;
 *         return towa_dtx_write(tx, &accounts[1], to + 10); 0: commit
 *     }
 *     ...
 *     rc = towa_dtx_run(thread, transfer, NULL);            TOWA_OK: done and durable; 1: not enough money
 *
 * WHAT IS GUARANTEED
 *   - Transactions are atomic and strictly serializable: each sees one state of the heap, and takes effect at one moment
 *     between the call of towa_dtx_run and its return.
 *   - TOWA_DTX_STRICT (the default): when towa_dtx_run returns TOWA_OK, what the transaction wrote is durable, and so is
 *     everything it read. After a crash exactly the transactions that returned are there, plus possibly the one in flight of
 *     each thread, whole or not at all.
 *     A transaction waits for those whose words (lines of 64 bytes) it reads or changes until they are durable. A body that
 *     takes long delays only transactions that conflict with it.
 *   - TOWA_DTX_BUFFERED: after a crash, a prefix of the order in which transactions took effect; it holds everything
 *     committed before the last towa_dtx_pool_sync that returned, and misses at most about one interval.
 *   - Each change of a tree (towa_tree_*) is durable when the call returns, and what is read from it is durable.
 *   - Whether "durable" outlives the process only, or power loss too, depends on the medium: `towa info PATH` says.
 *
 * WHAT THE PROGRAM MUST DO
 *   1. Read and write what other threads may write only by towa_dtx_read and towa_dtx_write, inside a body. A plain store to
 *      the heap is not durable. (But a block is the transaction's own until it takes effect: fill what towa_dtx_alloc just
 *      gave by plain stores, as what malloc gave, and do not towa_dtx_read or towa_dtx_write it in the same body.)
 *   2. A body may run several times, and only its last run counts; in hardware an earlier run leaves no trace, in software
 *      it leaves what it did to the program's own memory. So it sets what it hands out anew in each run, and does nothing
 *      that cannot be repeated: no output, no locks, no malloc without free.
 *      In hardware a run that will not commit may see words that never were together: it must not trust an index or a length
 *      that it read further than its own memory goes.
 *   3. A body passes on what a call that failed gave, at once. Such a transaction does not commit whatever the body
 *      returns, and what a call that failed was to fill in is left as it was. (A call that rule 4 forbids is refused, and no
 *      part of the transaction: that aborts only if the body passes it on.)
 *   4. A body returns: it does not throw, longjmp, end its thread, fork, or use any other pool, thread or tree.
 *   5. Only pointers into the same pool's heap may be stored in it (not into the C heap, the stack, or code).
 *   6. A towa_dtx_thread or a towa_tree_session is used by one thread at a time. It may be handed to another thread. A
 *      thread that ends does not give them back by itself.
 *
 * ERRORS
 *   As in towa.h: functions that return int give TOWA_OK (0) or a negative TOWA_E...; functions that return a pointer give
 *   NULL; towa_last_error() then says what happened, where, and what to do. Inside a hardware transaction nothing fails: the
 *   body is repeated in software, which says why. A transaction that fails has changed nothing. TOWA_EPOISONED: the medium
 *   failed while a record was written; what was committed before is safe, and opening the pool anew recovers it.
 *   A handle that is closed or of another kind is refused with TOWA_EUSAGE; only do not close one while another thread uses it.
 *
 * A child of fork() does not have the heap: it may only exec or exit. The parent's handles are refused there.
 *
 * ABI: structs that may grow start with their size. The library serves every header of its own major version.
 */
#ifndef TOWA_TX_H
#define TOWA_TX_H

#include <towa.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- pools of transactions ------------------------------------------------------------------------------------------- */

typedef struct towa_dtx_pool towa_dtx_pool;     /* an open pool of transactions */
typedef struct towa_dtx_thread towa_dtx_thread; /* a log of the pool, and what one thread needs to write it */
typedef struct towa_dtx towa_dtx;               /* the running transaction: for its body only */

/* towa_dtx_options.tm */
#define TOWA_DTX_TM_AUTO 0 /* in hardware where the machine commits hardware transactions, else in software */
#define TOWA_DTX_TM_RTM 1  /* in hardware; refused where there is none */
#define TOWA_DTX_TM_STM 2  /* in software */
#define TOWA_DTX_TM_LOCK 3 /* one after another, under a lock */

/* towa_dtx_options.commit */
#define TOWA_DTX_STRICT 0   /* durable when towa_dtx_run returns */
#define TOWA_DTX_BUFFERED 1 /* durable within an interval, or when towa_dtx_pool_sync returns */

/* towa_dtx_options.checkpointer: who brings the image up and frees the logs */
#define TOWA_DTX_CHECKPOINTER_THREAD 0  /* a thread of this process */
#define TOWA_DTX_CHECKPOINTER_PROCESS 1 /* `towa checkpointer POOL`; while there is none, a thread stands in. Strict only */
#define TOWA_DTX_CHECKPOINTER_MANUAL 2  /* towa_dtx_pool_checkpoint, and whoever finds his log full. For tests */

/* towa_dtx_options.flags */
#define TOWA_DTX_EAGER 1u    /* load everything at open instead of as touched */
#define TOWA_DTX_VOLATILE 2u /* keeps nothing, needs no path: the cost of transactions alone */
#define TOWA_DTX_PREFAULT 4u /* take the heap's memory at open instead of as touched: heap_len bytes */

/* How to open a pool. Start from TOWA_DTX_OPTIONS_INIT; zero in any other field means the default. */
typedef struct towa_dtx_options {
    uint32_t size;         /* sizeof(towa_dtx_options) */
    uint32_t open;         /* TOWA_OPEN_OR_CREATE ... (towa.h) */
    uint32_t medium;       /* TOWA_MEDIUM_DETECT ... (towa.h) */
    uint32_t tm;           /* TOWA_DTX_TM_AUTO ... */
    uint32_t commit;       /* TOWA_DTX_STRICT ... */
    uint32_t checkpointer; /* TOWA_DTX_CHECKPOINTER_THREAD ... */
    uint32_t flags;        /* TOWA_DTX_EAGER | ... */
    uint32_t lanes;        /* logs, and so threads at a time; fixed at creation; default 64, the most there can be */
    uint64_t heap_len;     /* bytes, fixed at creation; default 1 GiB, at most 1 TiB; only what is used takes space */
    uint64_t lane_len;     /* bytes of each log, a multiple of 4096, at least 64 KiB, fixed at creation; default 16 MiB; taken when a
                              thread first uses it */
    uint64_t interval_us;  /* TOWA_DTX_BUFFERED: microseconds between writes of the log; default 10000 */
    uint64_t base;         /* address of the heap, fixed at creation; default: the library picks one */
} towa_dtx_options;

#ifdef __cplusplus
#define TOWA_DTX_OPTIONS_INIT {static_cast<uint32_t>(sizeof(towa_dtx_options)), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}
#else
#define TOWA_DTX_OPTIONS_INIT {.size = (uint32_t)sizeof(towa_dtx_options)}
#endif

/* A pool's figures since it was opened. Set `size` to sizeof(struct towa_dtx_stats) before the call; an older library fills less
 * and says so. Times are in nanoseconds, summed over threads. */
struct towa_dtx_stats {
    uint64_t size;               /* in: sizeof; out: bytes filled */
    uint64_t tm;                 /* how transactions run here: TOWA_DTX_TM_RTM, _STM or _LOCK */
    uint64_t commits_hardware;   /* transactions that took effect in hardware */
    uint64_t commits_software;   /* and in software */
    uint64_t commits_read_only;  /* of both, those that wrote nothing */
    uint64_t aborts_conflict;    /* hardware runs repeated because another thread touched the same lines */
    uint64_t aborts_capacity;    /* because too much was read or written */
    uint64_t aborts_explicit;    /* because a software transaction took effect */
    uint64_t aborts_spurious;    /* interrupts, page faults, system calls */
    uint64_t aborts_software;    /* software runs repeated because what they had read changed */
    uint64_t stale;              /* changes of trees that were begun again */
    uint64_t aborts_user;        /* bodies that gave up, or failed */
    uint64_t abort_ns;           /* time in runs that were repeated, and waiting before the next */
    uint64_t log_full_ns;        /* time waiting for log space */
    uint64_t durability_ns;      /* time from taking effect to being durable; one record in sixteen is timed */
    uint64_t dependency_ns;      /* of that, waiting for other threads' records */
    uint64_t log_words;          /* words logged */
    uint64_t log_bytes;          /* bytes logged */
    uint64_t checkpoints;        /* rounds that brought up the image */
    uint64_t records_applied;    /* records they applied */
    uint64_t lines_written_back; /* lines of the image written for them */
    uint64_t replay_ns;          /* time they took */
};

/* Opens (recovering, if need be) or creates the pool in directory `path`; `options` may be NULL. One process owns a pool at a
 * time. NULL on failure. */
towa_dtx_pool *towa_dtx_pool_open(const char *path, const towa_dtx_options *options);
/* Brings up the image and closes. TOWA_EBUSY, and nothing happens, while any thread is registered or tree open. On any other error
 * the pool is closed all the same; what had been committed is still in the logs, and the next opening recovers it. */
int towa_dtx_pool_close(towa_dtx_pool *pool);
/* Returns when everything committed before the call is durable. Never in a body. */
int towa_dtx_pool_sync(towa_dtx_pool *pool);
/* Brings up the image to all that is durable and frees the logs. Done by itself in time. Never in a body. */
int towa_dtx_pool_checkpoint(towa_dtx_pool *pool);
/* Root `name`, as it is now: *object gets its address. Whoever set it may still be waiting for his transaction to be durable; a
 * transaction that is run after this call and reads something waits for that, too. TOWA_ENOENT if there is none, TOWA_ETYPE if it was
 * set with another tag or size. */
int towa_dtx_pool_root(towa_dtx_pool *pool, const char *name, uint64_t type_tag, size_t size, void **object);
/* First address and length of the heap. */
int towa_dtx_pool_heap(towa_dtx_pool *pool, void **base, uint64_t *len);
/* Fills at most stats->size bytes. */
int towa_dtx_pool_stats(towa_dtx_pool *pool, struct towa_dtx_stats *stats);

/* Takes a log of the pool. TOWA_EBUSY if all are taken, TOWA_ENOSPC if its space is not to be had. NULL on failure. */
towa_dtx_thread *towa_dtx_register(towa_dtx_pool *pool);
/* Gives it back. TOWA_EUSAGE in a body, or while another thread uses it. */
int towa_dtx_unregister(towa_dtx_thread *thread);

/* ---- transactions ------------------------------------------------------------------------------------------------------ */

/* What towa_dtx_read and the like give when another transaction was in the way. The body passes it on, and is run again. A body
 * that returns it of its own accord is run again, too: to wait until another thread has changed something. */
#define TOWA_DTX_AGAIN (-64)

/* Returns 0 to commit, TOWA_DTX_AGAIN to be run again, anything else to abort: positive values are the program's, negative ones
 * codes. */
typedef int (*towa_dtx_body)(towa_dtx *tx, void *arg);

/* Runs `body` as one transaction, in hardware if the pool uses it and it gets through, else in software. TOWA_OK: it took effect.
 * What `body` returned, if that was not 0; else the code of the call in it that failed; TOWA_ETOOBIG if its record is larger than
 * half a log. Inside a body of the same `thread` it runs the inner body as a part of the outer transaction; an inner body that
 * does not return 0 makes the whole one abort. */
int towa_dtx_run(towa_dtx_thread *thread, towa_dtx_body body, void *arg);
/* The same, in software at once: for bodies that allocate, free, or write much, which hardware cannot. */
int towa_dtx_run_software(towa_dtx_thread *thread, towa_dtx_body body, void *arg);

/* The word at `at`, which lies in the heap and is aligned to 8 (else TOWA_ERANGE): *value. */
int towa_dtx_read(towa_dtx *tx, const uint64_t *at, uint64_t *value);
/* Writes it. */
int towa_dtx_write(towa_dtx *tx, uint64_t *at, uint64_t value);
/* A block of at least `size` bytes, aligned to TOWA_ALLOC_ALIGN: *block. Its content is unspecified. If the transaction aborts, it
 * is free again. TOWA_ENOSPC if the heap is full. */
int towa_dtx_alloc(towa_dtx *tx, size_t size, void **block);
/* Copies `size` bytes to `at` (aligned to 8), in a block that this transaction allocated; the rest of the last word becomes zero. */
int towa_dtx_init(towa_dtx *tx, void *at, const void *bytes, size_t size);
/* Frees a block when the transaction takes effect; NULL is fine. TOWA_EUSAGE if there is no live block. */
int towa_dtx_free(towa_dtx *tx, void *block);
/* Root `name` as part of what the transaction reads: *object gets its address, or NULL if there is none. A
 * transaction that changes the root conflicts with this one; what towa_dtx_pool_root gives may be out of date in a
 * body. TOWA_ETYPE if it was set with another tag or size. */
int towa_dtx_root(towa_dtx *tx, const char *name, uint64_t type_tag, size_t size, void **object);
/* Sets root `name` (1 to TOWA_ROOT_NAME_MAX bytes) to `object`, or removes it with NULL.
 * TOWA_EUSAGE if it is that of an open tree. */
int towa_dtx_set_root(towa_dtx *tx, const char *name, uint64_t type_tag, size_t size, void *object);

/* ---- ordered maps -------------------------------------------------------------------------------------------------------- *
 * From uint64_t or byte strings of at most TOWA_TREE_KEY_MAX bytes, in order, to uint64_t. Concurrent; each call is atomic, and
 * durable when it returns (in a TOWA_DTX_BUFFERED pool, as any transaction there). Never in a body (TOWA_EUSAGE).
 * A key is `key_len` bytes; of a tree of uint64_t it points to one, and key_len is 8. Byte strings are compared byte by byte. */

typedef struct towa_tree towa_tree;                 /* an open tree, for all threads */
typedef struct towa_tree_session towa_tree_session; /* one thread's way to it */

/* towa_tree_open's keys */
#define TOWA_TREE_U64 0u   /* uint64_t, as the machine has them */
#define TOWA_TREE_BYTES 1u /* byte strings */
#define TOWA_TREE_KEY_MAX 1024
/* towa_tree_scan's flags, with TOWA_REVERSE (towa.h) */
#define TOWA_TREE_AFTER_FROM 2u /* without `from` itself */
#define TOWA_TREE_WITH_TO 4u    /* with `to` itself */

/* How to open a tree in a directory of its own. Start from TOWA_TREE_OPTIONS_INIT; zero means the default. */
typedef struct towa_tree_options {
    uint32_t size;     /* sizeof(towa_tree_options) */
    uint32_t open;     /* TOWA_OPEN_OR_CREATE ... (towa.h) */
    uint32_t medium;   /* TOWA_MEDIUM_DETECT ... (towa.h) */
    uint32_t reserved; /* 0 */
    uint64_t len;      /* capacity in bytes, fixed at creation; default 1 GiB, at most 1 TiB; only what is used takes space */
} towa_tree_options;

#ifdef __cplusplus
#define TOWA_TREE_OPTIONS_INIT {static_cast<uint32_t>(sizeof(towa_tree_options)), 0, 0, 0, 0}
#else
#define TOWA_TREE_OPTIONS_INIT {.size = (uint32_t)sizeof(towa_tree_options)}
#endif

/* The B+-tree named `name` in a pool of transactions, created if there is none. Many trees share a pool with other data.
 * TOWA_ETYPE if the name is taken by something else, or by a tree of other keys. This, towa_tree_count, towa_tree_check
 * and towa_tree_bulk_load take one of the pool's logs for the time of the call: TOWA_EBUSY if there is none. NULL on failure. */
towa_tree *towa_tree_open(towa_dtx_pool *pool, const char *name, unsigned keys);
/* The FPTree in directory `path`, created if there is none: leaves in durable memory itself, no log, no checkpoints. Made for media
 * that are memory (TOWA_MEDIUM_DAX, TOWA_MEDIUM_RAM); on a file each step of a change is an fdatasync, and a tree in a pool takes
 * fewer. `options` may be NULL. NULL on failure. */
towa_tree *towa_tree_open_fp(const char *path, const towa_tree_options *options, unsigned keys);
/* Gives the handle back; the tree stays. TOWA_EBUSY, and nothing happens, while sessions are open. What removals
 * left unused of a tree in a pool is given back to the pool, unless another handle of it is open; so it is by
 * towa_tree_open. */
int towa_tree_close(towa_tree *tree);
/* Removes the B+-tree named `name` of a pool, with all its keys, and gives the space back to the pool. (Values that
 * are addresses of blocks of your own are numbers to it.) TOWA_EBUSY, and nothing happens, while it is open;
 * TOWA_ENOENT if there is none; TOWA_ETYPE if there is something else, or a tree of other keys. It takes many
 * transactions: after a crash in its midst the tree cannot be opened any more, and this call goes on. Takes one of
 * the pool's logs for the time of the call. Never in a body. */
int towa_tree_destroy(towa_dtx_pool *pool, const char *name, unsigned keys);
/* Number of keys, counted by walking the tree (exact when nobody writes), or a negative code. */
int64_t towa_tree_count(towa_tree *tree);
/* Checks the whole structure while nobody writes: TOWA_OK, or TOWA_EDAMAGED. */
int towa_tree_check(towa_tree *tree);
/* Fills the tree, which is empty, with `count` entries of rising keys: faster than inserting them, and leaves are packed. Key i is
 * key_lens[i] bytes at keys[i], its value values[i]; of a tree of uint64_t `key_lens` may be NULL. How many were loaded, or a negative
 * code: TOWA_EBUSY while sessions are open or another thread uses the tree, TOWA_EUSAGE if it is not empty or the keys do not
 * rise. A tree in a pool then keeps what was loaded before the failure, whole leaves from the first on; one in a directory of its own
 * stays empty. */
int64_t towa_tree_bulk_load(towa_tree *tree, const void *const *keys, const size_t *key_lens, const uint64_t *values,
                            size_t count);

/* A way to the tree, for one thread at a time. Of a pool's tree it takes one of the pool's logs. NULL on failure. */
towa_tree_session *towa_tree_session_open(towa_tree *tree);
/* Gives it back. */
int towa_tree_session_close(towa_tree_session *session);

/* Adds `key`, unless it is there. 1 if it was added, 0 if it is there, or a negative code. */
int towa_tree_insert(towa_tree_session *session, const void *key, size_t key_len, uint64_t value);
/* Adds `key` or changes its value. 1 if the key is new, 0 if it had a value, which *old (may be NULL) gets, or a negative code. */
int towa_tree_upsert(towa_tree_session *session, const void *key, size_t key_len, uint64_t value, uint64_t *old);
/* The value of `key`. 1 if it is there, 0 if not (then nothing is written), or a negative code. */
int towa_tree_get(towa_tree_session *session, const void *key, size_t key_len, uint64_t *value);
/* Removes `key`. 1 if it was there, with the value that *old (may be NULL) gets, 0 if not, or a negative code. */
int towa_tree_remove(towa_tree_session *session, const void *key, size_t key_len, uint64_t *old);

/* Called with a copy of each key. What is not 0 ends the scan and becomes its result (make it positive: negative results are
 * codes). It may do anything but use the scan's own session; it must not throw, longjmp or end its thread. */
typedef int (*towa_tree_visit)(const void *key, size_t key_len, uint64_t value, void *arg);
/* Visits the entries with from <= key < to, in order; NULL is no bound. What is there all the time is visited, once; what others
 * change meanwhile may or may not be seen. */
int towa_tree_scan(towa_tree_session *session, const void *from, size_t from_len, const void *to, size_t to_len,
                   unsigned flags, towa_tree_visit visit, void *arg);

#ifdef __cplusplus
}
#endif

#endif /* TOWA_TX_H */
