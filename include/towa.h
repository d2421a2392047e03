/*
 * towa.h - in-memory data structures that survive a crash, for C.
 *
 * A pool is a directory with a heap in it. The program reads and writes the heap through ordinary pointers; every
 * interval (100 ms) the library makes durable what has changed, beside the running program, which never stops for it.
 * After a crash the heap is, at the same addresses, exactly as it was at the end of a recent epoch.
 *
 *     lock -> towa_transaction_start -> towa_mark, write, towa_mark, write ... -> towa_transaction_end -> unlock
 *
 * WHAT IS GUARANTEED (buffered durable linearizability)
 *   - After a crash: all transactions of epochs 1..n, whole, and none of a later epoch, where n is at least the durable
 *     epoch that towa_durable_epoch() last gave. Without a sync at most about one interval of work is lost.
 *   - towa_sync() returns when everything completed before the call is durable.
 *   - Whether "durable" outlives the process only, or power loss too, depends on the medium: `towa info PATH` says.
 *
 * WHAT THE PROGRAM MUST DO
 *   1. Write to the heap only inside a transaction, and call towa_mark on the bytes BEFORE writing them. A block just
 *      allocated in this transaction is marked already. A forgotten mark loses that write after a crash; the option
 *      TOWA_DETECT_FORGOTTEN_MARKS finds them.
 *   2. Locks enclose transactions: start after the last lock is taken, end before the first is released. Else a
 *      transaction of an older epoch can read what a newer one wrote, and survive without it.
 *   3. Two transactions that run at the same time never write the same 64-byte line (TOWA_LINE). Blocks of the heap never
 *      share a line; lay out arrays that several threads write under different locks by lines.
 *   4. Only pointers into the same pool's heap may be stored in it (not into the C heap, the stack, or code).
 *   5. Never block inside a transaction on anything that waits for a checkpoint (towa_sync is refused there).
 *
 * WHAT HAPPENS WHEN A TRANSACTION DOES NOT END
 *   - towa_transaction_abort, or the death of its thread (return, pthread_exit, cancellation): a transaction begun with
 *     TOWA_UNDOABLE is rolled back. A plain one has nothing to roll back to, so the pool is poisoned: it stays at its last
 *     durable epoch, every later transaction fails with TOWA_EPOISONED, and opening the pool anew recovers it.
 *   - A transaction in which a mark failed cannot commit: its end is an abort.
 *   - When the pool was poisoned meanwhile (by another thread, or by rule 3 broken across epochs), towa_mark and the
 *     transaction's end say so with TOWA_EPOISONED: what it wrote will never be durable.
 *   - The death of the process: the epoch it was in is dropped whole.
 *
 * ERRORS
 *   Functions that return int give TOWA_OK (0) or a negative TOWA_E...; functions that return a pointer give NULL. The
 *   calling thread's towa_last_error() then says what happened, where, and what to do; towa_last_error_code() the code.
 *   Nothing here throws, unwinds, or ends the program (but for a C heap that has not even the few hundred bytes of the
 *   library's own bookkeeping, or of the copies that a visit is given).
 *
 * HANDLES, AND DOING WITHOUT
 *   Most programs have one pool: open it with towa_init, call towa_thread_init once per thread, and use the functions
 *   named after the paper's Table 1 (bottom of this file). With several pools use the handles: towa_pool_* and
 *   towa_thread* with towa_tx_*. Wherever a `towa_pool *` is asked for, NULL means the one of towa_init; wherever a
 *   `towa_thread *`, NULL means the calling thread's current handle (the one on which it last began or attached).
 *   A towa_thread belongs to the thread that attached it. A pool's functions may be called by any thread. A handle that is
 *   closed or of another kind is refused with TOWA_EUSAGE; only do not close one while another thread uses it.
 *
 * A child of fork() does not have the heap: it may only exec or exit. The parent's handles are refused there.
 *
 * Under ThreadSanitizer (-fsanitize=thread) link libtowa.so: the library itself is not instrumented, and this header
 * tells the sanitizer to say nothing of the library's own accesses. A program with a __tsan_default_suppressions of its
 * own defines TOWA_NO_TSAN_SUPPRESSIONS before it includes this, and adds "called_from_lib:libtowa.so". A pool must lie
 * below 512 GiB then; new ones do.
 *
 * ABI: structs that may grow start with their size. The library serves every header of its own major version.
 */
#ifndef TOWA_H
#define TOWA_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define TOWA_VERSION_MAJOR 0
#define TOWA_VERSION_MINOR 1
#define TOWA_VERSION_PATCH 0
/* Comparable: 1002003 is 1.2.3. */
#define TOWA_VERSION (TOWA_VERSION_MAJOR * 1000000 + TOWA_VERSION_MINOR * 1000 + TOWA_VERSION_PATCH)

/* Bytes in a line: the unit of tracking, and of the rule about concurrent transactions. */
#define TOWA_LINE 64
/* Alignment of every block the heap gives out. */
#define TOWA_ALLOC_ALIGN 16
/* Longest name of a root, in bytes. */
#define TOWA_ROOT_NAME_MAX 40

/* ---- error codes ------------------------------------------------------------------------------------------------- */

#define TOWA_OK 0
#define TOWA_EINVAL (-1)       /* an argument makes no sense: NULL, a size field of another library, a path not UTF-8 */
#define TOWA_EUSAGE (-2)       /* out of order: nested start, no transaction, sync inside one, another thread's handle */
#define TOWA_ENOSPC (-3)       /* heap or medium full; nothing was changed and the pool stays good */
#define TOWA_EPOISONED (-4)    /* the pool stays at its last durable epoch; open it anew to recover */
#define TOWA_EBUSY (-5)        /* another process owns the pool, or threads are still attached to it */
#define TOWA_ENOENT (-6)       /* no such pool or root */
#define TOWA_EEXIST (-7)       /* a pool is there already */
#define TOWA_EIO (-8)          /* the operating system refused or failed; the message has its word */
#define TOWA_EUNSUPPORTED (-9) /* this medium or machine cannot do it */
#define TOWA_ETYPE (-10)       /* the root is there with another type tag or size */
#define TOWA_ERANGE (-11)      /* the bytes do not lie in the heap of an open pool */
#define TOWA_ETIMEDOUT (-12)   /* not durable within the time given */
#define TOWA_EINTERNAL (-13)   /* a bug in the library; a transaction it happened in was aborted */
#define TOWA_EDAMAGED (-14)    /* not a pool, a newer format, or damaged; nothing was modified */
#define TOWA_ETOOBIG (-15)     /* the transaction writes more than it reserved, or than the log can hold; the pool stays good */

#ifdef __cplusplus
extern "C" {
#endif

/* ---- types ------------------------------------------------------------------------------------------------------- */

typedef struct towa_pool towa_pool;     /* an open pool */
typedef struct towa_thread towa_thread; /* one thread's registration with one pool */

/* towa_options.open */
#define TOWA_OPEN_OR_CREATE 0
#define TOWA_OPEN_EXISTING 1 /* fails with TOWA_ENOENT if there is none */
#define TOWA_CREATE_NEW 2    /* fails with TOWA_EEXIST if there is one */

/* towa_options.mode */
#define TOWA_MODE_NONSTOP 0        /* checkpoints beside the running program */
#define TOWA_MODE_STOP_THE_WORLD 1 /* stops every thread at each checkpoint (CpNvm), for comparison */
#define TOWA_MODE_VOLATILE 2       /* keeps nothing, needs no path: the baseline of measurements */

/* towa_options.medium */
#define TOWA_MEDIUM_DETECT 0 /* from the path */
#define TOWA_MEDIUM_DAX 1    /* durable memory, MAP_SYNC: power-safe */
#define TOWA_MEDIUM_FILE 2   /* any file system, fdatasync: power-safe */
#define TOWA_MEDIUM_RAM 3    /* tmpfs: survives the process, not the machine */

/* towa_options.flags */
#define TOWA_EAGER 1u                  /* load everything at open instead of as touched */
#define TOWA_DETECT_FORGOTTEN_MARKS 2u /* compare heap and image; slow, for tests; see towa_pool_forgotten_marks */
#define TOWA_MANUAL 4u                 /* checkpoints happen in towa_pool_checkpoint only */
#define TOWA_PREFAULT 8u               /* take the heap's memory at open instead of as touched: heap_len bytes */
#define TOWA_IN_PLACE 16u              /* a new pool on tmpfs: memory holds it once, image and heap are the same; else ignored */

/* How to open a pool. Start from TOWA_OPTIONS_INIT; zero in any other field means the default. */
typedef struct towa_options {
    uint32_t size;        /* sizeof(towa_options) */
    uint32_t open;        /* TOWA_OPEN_OR_CREATE ... */
    uint32_t mode;        /* TOWA_MODE_NONSTOP ... */
    uint32_t medium;      /* TOWA_MEDIUM_DETECT ... */
    uint32_t flags;       /* TOWA_EAGER | ... */
    uint32_t persisters;  /* persister threads; default 1 (stopping the world: 2) */
    uint64_t heap_len;    /* bytes, fixed at creation; default 1 GiB; only what is used takes space */
    uint64_t log_len;     /* bytes, fixed at creation; default: a quarter of the heap, 16 to 512 MiB (in place: an
                             eighth, 16 to 128 MiB) */
    uint64_t interval_us; /* microseconds between checkpoints; default 100000 */
    uint64_t base;        /* address of the heap, fixed at creation; default: the library picks one */
} towa_options;

#ifdef __cplusplus
#define TOWA_OPTIONS_INIT {static_cast<uint32_t>(sizeof(towa_options)), 0, 0, 0, 0, 0, 0, 0, 0, 0}
#else
#define TOWA_OPTIONS_INIT {.size = (uint32_t)sizeof(towa_options)}
#endif

/* What the engine has been doing. Set `size` to sizeof(struct towa_stats) before the call; an older library fills less and says
 * so. */
struct towa_stats {
    uint64_t size;                  /* in: sizeof; out: bytes filled */
    uint64_t epoch;                 /* the epoch that new transactions join */
    uint64_t durable_epoch;         /* newest durable epoch */
    uint64_t durable_age_us;        /* of work that a crash now would lose; 0 if nothing was changed since */
    uint64_t checkpoints;           /* taken since the pool was opened */
    uint64_t log_bytes;             /* live now */
    uint64_t log_capacity;          /* bytes */
    uint64_t lines_logged;          /* since the pool was opened */
    uint64_t lines_copied_on_write; /* of these, old lines saved by the program's threads */
    uint64_t stalls;                /* transaction starts that waited for log space */
    uint64_t stall_us;              /* microseconds so waited, over all threads */
    uint64_t boundary_us_max;       /* longest wait for the transactions of an old epoch */
    uint64_t checkpoint_us_max;     /* longest time from an epoch's end until it was durable */
    uint64_t heap_used;             /* bytes in live blocks */
    uint64_t heap_len;              /* bytes */
    uint64_t threads;               /* attached */
    uint64_t recovered_lines;       /* replayed at open */
    uint64_t recovery_us;           /* microseconds that took */
    uint64_t medium_bytes;          /* written to the medium since the pool was opened, all files */
    uint64_t medium_fences;         /* on it; on a file: fdatasync calls */
};

/*
 * Which lines the running transaction may write without telling the library again. For the inline part of towa_mark only;
 * never write to it. A towa_thread begins with one; towa_self() is the one of the calling thread's last begun transaction.
 */
struct towa_window {
    uintptr_t base;      /* first address of the heap, a multiple of TOWA_LINE */
    size_t len;          /* bytes; 0: always ask the library */
    const uint8_t *tags; /* one per line: the epoch that last marked it */
    uint8_t tag;         /* of this transaction's epoch */
    uint8_t untracked;   /* 1: nothing is tracked (TOWA_MODE_VOLATILE), a mark has nothing to do */
    uint8_t reserved[6];
};

/* ---- errors and version -------------------------------------------------------------------------------------------- */

/* TOWA_VERSION of the library, to compare with the header's. */
uint32_t towa_version(void);
/* What a code means, in a few words. Never NULL. */
const char *towa_strerror(int code);
/* The last failure of the calling thread: what, where, what to do. "" if none. Valid until the thread's next failure. */
const char *towa_last_error(void);
/* Its code, or TOWA_OK. A success does not reset it. */
int towa_last_error_code(void);

/* ---- pools ----------------------------------------------------------------------------------------------------------- */

/* Opens (recovering, if need be) or creates the pool in directory `path`; `options` may be NULL. One process owns a pool at a
 * time. NULL on failure. */
towa_pool *towa_pool_open(const char *path, const towa_options *options);
/* Last checkpoint, then closes. TOWA_EBUSY, and nothing happens, while any thread is attached or container open. On any other
 * error the pool is closed all the same, but what was not durable yet is lost. */
int towa_pool_close(towa_pool *pool);
/* The pool of towa_init, or NULL. */
towa_pool *towa_pool_default(void);

/* Root `name`: *object gets its address. TOWA_ENOENT if there is none, TOWA_ETYPE if it was set with another tag or size. */
int towa_pool_root(towa_pool *pool, const char *name, uint64_t type_tag, size_t size, void **object);
/* Returns when everything completed before the call is durable. `durable` (may be NULL) gets the durable epoch. */
int towa_pool_sync(towa_pool *pool, uint64_t *durable);
/* Waits until `epoch` is durable, without hurrying anything. TOWA_ETIMEDOUT if that takes longer than `timeout_us`. */
int towa_pool_wait_durable(towa_pool *pool, uint64_t epoch, uint64_t timeout_us);
/* One checkpoint now; `durable` (may be NULL) gets the durable epoch. The only kind there is with TOWA_MANUAL. */
int towa_pool_checkpoint(towa_pool *pool, uint64_t *durable);
/* The epoch that new transactions join; 0 on failure. */
uint64_t towa_pool_epoch(towa_pool *pool);
/* The newest durable epoch; 0 on failure, or if none is yet. */
uint64_t towa_pool_durable_epoch(towa_pool *pool);
/* Time between checkpoints, settable at any time. */
uint64_t towa_pool_interval_us(towa_pool *pool);
int towa_pool_set_interval_us(towa_pool *pool, uint64_t interval_us);
/* Fills at most stats->size bytes. */
int towa_pool_stats(towa_pool *pool, struct towa_stats *stats);
/* First address and length of the heap. */
int towa_pool_heap(towa_pool *pool, void **base, uint64_t *len);
/* Calls report(text, address, arg) for every line found written but not marked since last asked, where
 * TOWA_DETECT_FORGOTTEN_MARKS was given at open. Each epoch's end looks, on a file after bringing the image up to date. Gives
 * their number (0 to INT_MAX), or a negative code. `text` is valid during the call only. */
int towa_pool_forgotten_marks(towa_pool *pool, void (*report)(const char *text, const void *address, void *arg), void *arg);
/* Usable bytes of a live block, at least what was asked for; 0 on failure. */
size_t towa_pool_block_size(towa_pool *pool, const void *block);

/* ---- threads --------------------------------------------------------------------------------------------------------- */

/* Registers the calling thread; again, if it is registered, which then takes as many detaches. A thread that ends detaches by
 * itself. NULL on failure. */
towa_thread *towa_thread_attach(towa_pool *pool);
/* Undoes one attach. TOWA_EUSAGE inside a transaction. */
int towa_thread_detach(towa_thread *thread);
/* The calling thread's handle on `pool`, or NULL if it is not attached (this is no failure: the last error stays). */
towa_thread *towa_thread_on(towa_pool *pool);

/* ---- transactions ------------------------------------------------------------------------------------------------------ */

/* towa_tx_begin's flags */
#define TOWA_UNDOABLE 1u /* abort restores what was written; every first write to a line then saves it */

/* Starts a transaction. The only place that may wait (for log space), or fail for want of it. No nesting. Its share: it may mark
 * up to a 128th of the log's bytes (512 KB where the heap has 256 MiB), less when more than 32 threads are attached: then a
 * quarter of the log divided by their number. A large allocation beyond the share fails with TOWA_ETOOBIG; marks beyond it take
 * more of the log if there is any, and poison the pool, saying so, if there is none. */
int towa_tx_begin(towa_thread *thread, unsigned flags);
/* Starts one that may mark up to `bytes` more. TOWA_ETOOBIG if the log could never hold that. */
int towa_tx_begin_reserving(towa_thread *thread, unsigned flags, size_t bytes);
/* Ends it. It is durable once towa_pool_durable_epoch() >= the epoch that towa_tx_epoch gave. TOWA_EPOISONED if it never will. */
int towa_tx_end(towa_thread *thread);
/* Gives it up. TOWA_OK if it was undoable and is rolled back (in any mode), else TOWA_EPOISONED: see the top of this file. */
int towa_tx_abort(towa_thread *thread);
/* The epoch of the running transaction, 0 outside one. */
uint64_t towa_tx_epoch(towa_thread *thread);

/* A block of at least `size` bytes, aligned to TOWA_ALLOC_ALIGN, sharing no line with another block, marked; its content is
 * unspecified. NULL if the heap is full: end or abort as you like, nothing was changed by the attempt. */
void *towa_tx_alloc(towa_thread *thread, size_t size);
/* The same, with the `size` bytes of `init` copied into it (zeroes if NULL). */
void *towa_tx_alloc_init(towa_thread *thread, size_t size, const void *init);
/* Frees a block of the pool; NULL is fine. A crash that drops this transaction finds the block intact. */
int towa_tx_free(towa_thread *thread, void *block);
/* Sets root `name` (1 to TOWA_ROOT_NAME_MAX bytes) to `object`, or removes it with NULL. */
int towa_tx_set_root(towa_thread *thread, const char *name, uint64_t type_tag, size_t size, void *object);

/* The part of the two marks below that is not inline. */
int towa_tx_mark_slow(towa_thread *thread, const void *addr, size_t size);
int towa_mark_slow(const void *addr, size_t size);
/* The calling thread's window; the same address for the life of the thread. Never NULL. */
const struct towa_window *towa_self(void);

/* ---- containers --------------------------------------------------------------------------------------------------------- *
 * Ready-made and concurrent: each call locks what it needs and is a transaction of its own, atomic and buffered as every
 * other. Therefore never inside a transaction (TOWA_EUSAGE). Keys, values and a queue's items are byte strings of any length
 * below 4 GiB; NULL is fine for one of length 0. `thread` as everywhere, and attached to the container's pool; reading needs
 * none. A pool is not closed while a container of it is open. */

typedef struct towa_map towa_map;
typedef struct towa_queue towa_queue;
typedef struct towa_vector towa_vector;

/* towa_map_open's kind */
#define TOWA_MAP_HASH 0u    /* unordered, the fastest */
#define TOWA_MAP_ORDERED 1u /* a B+-tree in order of keys (compared byte by byte) */
/* towa_map_range's flags */
#define TOWA_REVERSE 1u /* greatest key first */
/* Bytes of a vector's largest item. */
#define TOWA_VECTOR_ITEM_MAX 65536

/* Called with copies: it may do anything, towa_map_* included, but must end the transactions it starts. What is not 0 ends the
 * visit and becomes its result (make it positive: negative results are codes). It must not throw, longjmp or end its thread. */
typedef int (*towa_visit)(const void *key, size_t key_len, const void *value, size_t value_len, void *arg);

/* The map named `name`, created if the pool has none. TOWA_ETYPE if the name is taken by something else. NULL on failure. */
towa_map *towa_map_open(towa_pool *pool, const char *name, unsigned kind);
/* Gives the handle back; the map stays. */
void towa_map_close(towa_map *map);
/* Gives `key` the value. 1 if the key is new, 0 if it had a value, or a negative code. */
int towa_map_put(towa_map *map, towa_thread *thread, const void *key, size_t key_len, const void *value, size_t value_len);
/* Removes `key`. 1 if it was there, 0 if not, or a negative code. */
int towa_map_delete(towa_map *map, towa_thread *thread, const void *key, size_t key_len);
/* Copies up to `room` bytes of the value; *value_len (may be NULL) gets its whole length. 1 if the key is there, 0 if not (then
 * nothing is written), or a negative code. */
int towa_map_get(towa_map *map, const void *key, size_t key_len, void *value, size_t room, size_t *value_len);
/* Number of items (exact when nobody writes), or a negative code. The first call after opening counts them. */
int64_t towa_map_count(towa_map *map);
/* Visits all items; what changes meanwhile may or may not be seen. */
int towa_map_each(towa_map *map, towa_visit visit, void *arg);
/* Visits the items with from <= key < to, in order; NULL is no bound. TOWA_MAP_ORDERED only. */
int towa_map_range(towa_map *map, const void *from, size_t from_len, const void *to, size_t to_len, unsigned flags,
                   towa_visit visit, void *arg);

/* The first-in first-out queue named `name`, created if the pool has none; many may push and pop. NULL on failure. */
towa_queue *towa_queue_open(towa_pool *pool, const char *name);
/* Gives the handle back; the queue stays. */
void towa_queue_close(towa_queue *queue);
/* Appends an item. */
int towa_queue_push(towa_queue *queue, towa_thread *thread, const void *item, size_t len);
/* Takes the oldest item: *item is a copy to be given to free(), *len its length. 1 if there was one, 0 if not, or a negative
 * code (TOWA_ENOSPC: no memory for the copy; the item stays). */
int towa_queue_pop(towa_queue *queue, towa_thread *thread, void **item, size_t *len);
/* Number of items (exact when nobody works on it), or a negative code. */
int64_t towa_queue_count(towa_queue *queue);

/* The vector named `name` of items of `item_size` bytes, 1 to TOWA_VECTOR_ITEM_MAX, created if the pool has none; it grows at its
 * end and never moves its items. TOWA_ETYPE if its items have another size. NULL on failure. `item` below: item_size bytes. */
towa_vector *towa_vector_open(towa_pool *pool, const char *name, size_t item_size);
/* Gives the handle back; the vector stays. */
void towa_vector_close(towa_vector *vector);
/* Copies the item at `index` to `item`. 1 if there is one, 0 beyond the end (then nothing is written), or a negative code. */
int towa_vector_get(towa_vector *vector, uint64_t index, void *item);
/* Replaces the item at `index`. 1 if there is one, 0 beyond the end, or a negative code. */
int towa_vector_set(towa_vector *vector, towa_thread *thread, uint64_t index, const void *item);
/* Appends an item; *index (may be NULL) gets its index. */
int towa_vector_push(towa_vector *vector, towa_thread *thread, const void *item, uint64_t *index);
/* Takes the last item, with a copy to `item` unless that is NULL. 1 if there was one, 0 if not, or a negative code. */
int towa_vector_pop(towa_vector *vector, towa_thread *thread, void *item);
/* Number of items (exact when nobody works on it), or a negative code. */
int64_t towa_vector_count(towa_vector *vector);

/* ---- the write barrier, inline ------------------------------------------------------------------------------------------ */

#if defined(__GNUC__) && !defined(TOWA_NO_INLINE_MARK)
/* One pointer per thread, shared by all translation units of a program or library. */
__attribute__((weak, visibility("hidden"))) __thread const struct towa_window *towa_self_cached_;

/* Whether every line of a range of at least one byte carries the running transaction's tag already. */
static inline int towa_window_has_(const struct towa_window *w, const void *addr, size_t size)
{
    size_t off = (size_t)((uintptr_t)addr - w->base), line, last;
    if (__builtin_expect(off >= w->len || size > w->len - off, 0))
        return w->untracked;
    line = off / TOWA_LINE;
    last = (off + size - 1) / TOWA_LINE;
    do {
        /* Relaxed: only this thread sets a tag of its epoch on lines it may write (rule 3). */
        if (__builtin_expect(__atomic_load_n(&w->tags[line], __ATOMIC_RELAXED) != w->tag, 0))
            return 0;
    } while (line++ < last);
    return 1;
}

/* Write barrier of `thread`'s transaction: call it before writing to addr..addr + size. On failure do not write. */
static inline int towa_tx_mark(towa_thread *thread, const void *addr, size_t size)
{
    if (size == 0 || (thread && towa_window_has_((const struct towa_window *)(const void *)thread, addr, size)))
        return TOWA_OK;
    return towa_tx_mark_slow(thread, addr, size);
}

/* Write barrier of the calling thread's transaction on whichever pool holds addr..addr + size: call it before writing there.
 * On failure do not write. Bytes outside all pools: TOWA_ERANGE, without further consequence. */
static inline int towa_mark(const void *addr, size_t size)
{
    const struct towa_window *w = towa_self_cached_;
    if (__builtin_expect(!w, 0))
        w = towa_self_cached_ = towa_self();
    if (size == 0 || towa_window_has_(w, addr, size))
        return TOWA_OK;
    return towa_mark_slow(addr, size);
}
#else
static inline int towa_tx_mark(towa_thread *thread, const void *addr, size_t size)
{
    return towa_tx_mark_slow(thread, addr, size);
}
static inline int towa_mark(const void *addr, size_t size)
{
    return towa_mark_slow(addr, size);
}
#endif

/* ---- the paper's Table 1: one pool, the calling thread ------------------------------------------------------------------- */

/* Opens the pool that NULL stands for. TOWA_EUSAGE if there is one. */
int towa_init(const char *path, const towa_options *options);
/* Detaches the calling thread and closes the pool, as towa_pool_close does; TOWA_EBUSY, and nothing happens, while other threads
 * are attached or the calling one is in a transaction. A program that ends without it loses at most what a crash would. */
int towa_finalize(void);

/* Registers the calling thread with the pool of towa_init. */
static inline int towa_thread_init(void) { return towa_thread_attach(NULL) ? TOWA_OK : towa_last_error_code(); }
/* Undoes it; a thread that ends does so by itself. */
static inline int towa_thread_exit(void) { return towa_thread_detach(NULL); }
/* Starts a transaction: after the last lock is taken. */
static inline int towa_transaction_start(void) { return towa_tx_begin(NULL, 0); }
/* Starts one that towa_transaction_abort can roll back. */
static inline int towa_transaction_start_undoable(void) { return towa_tx_begin(NULL, TOWA_UNDOABLE); }
/* Ends it: before the first lock is released. */
static inline int towa_transaction_end(void) { return towa_tx_end(NULL); }
/* Gives it up. */
static inline int towa_transaction_abort(void) { return towa_tx_abort(NULL); }
/* towa_mark: above. */
/* One checkpoint now. The engine takes them by itself; programs rarely need this. */
static inline int towa_checkpoint(void) { return towa_pool_checkpoint(NULL, NULL); }
/* A marked block; what malloc is to the C heap. */
static inline void *towa_alloc(size_t size) { return towa_tx_alloc(NULL, size); }
/* Frees one. */
static inline int towa_free(void *block) { return towa_tx_free(NULL, block); }
/* A root's object; NULL if there is none or it was set with another tag or size (towa_last_error_code tells). */
static inline void *towa_root_get(const char *name, uint64_t type_tag, size_t size)
{
    void *object = NULL;
    return towa_pool_root(NULL, name, type_tag, size, &object) == TOWA_OK ? object : NULL;
}
static inline int towa_root_set(const char *name, uint64_t type_tag, size_t size, void *object)
{
    return towa_tx_set_root(NULL, name, type_tag, size, object);
}
static inline int towa_sync(void) { return towa_pool_sync(NULL, NULL); }
static inline int towa_wait_durable(uint64_t epoch, uint64_t timeout_us)
{
    return towa_pool_wait_durable(NULL, epoch, timeout_us);
}
static inline uint64_t towa_epoch(void) { return towa_pool_epoch(NULL); }
static inline uint64_t towa_durable_epoch(void) { return towa_pool_durable_epoch(NULL); }
static inline uint64_t towa_interval_us(void) { return towa_pool_interval_us(NULL); }
static inline int towa_set_interval_us(uint64_t interval_us) { return towa_pool_set_interval_us(NULL, interval_us); }
#ifdef __GNUC__
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wshadow" /* the paper calls the function as we call the struct; C++ minds */
#endif
static inline int towa_stats(struct towa_stats *stats) { return towa_pool_stats(NULL, stats); }
#ifdef __GNUC__
#pragma GCC diagnostic pop
#endif

#if defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define TOWA_THREAD_SANITIZER
#endif
#elif defined(__SANITIZE_THREAD__)
#define TOWA_THREAD_SANITIZER
#endif
#if defined(TOWA_THREAD_SANITIZER) && !defined(TOWA_NO_TSAN_SUPPRESSIONS)
/* Asked for by the sanitizer at the program's start. */
const char *__tsan_default_suppressions(void);
__attribute__((weak, visibility("default"))) const char *__tsan_default_suppressions(void)
{
    return "called_from_lib:libtowa.so\n";
}
#endif

/* A type tag from a word of the program's choice (FNV-1a, 64 bits): change the word when the layout changes. */
static inline uint64_t towa_type_tag(const char *word)
{
    uint64_t h = UINT64_C(0xcbf29ce484222325);
    for (; *word; word++)
        h = (h ^ (unsigned char)*word) * UINT64_C(0x100000001b3);
    return h;
}

#ifdef __cplusplus
}
#endif

/* TOWA_ROOT_GET(struct list, "main"), TOWA_ROOT_SET(struct list, "main", p): the type's name is the tag. */
#define TOWA_ROOT_GET(type, name) ((type *)towa_root_get((name), towa_type_tag(#type), sizeof(type)))
#define TOWA_ROOT_SET(type, name, object) towa_root_set((name), towa_type_tag(#type), sizeof(type), (object))
/* TOWA_MARK(p->next) marks that lvalue. */
#define TOWA_MARK(lvalue) towa_mark(&(lvalue), sizeof(lvalue))

#ifndef __cplusplus
/* TOWA_PNEW(struct node, .key = 1, .next = NULL): a marked block, initialised; fields not named are zero. NULL if full.
 * In C++ towa.hpp has it, with constructor arguments. */
#define TOWA_PNEW(type, ...) ((type *)towa_tx_alloc_init(NULL, sizeof(type), &(type){__VA_ARGS__}))
/* Frees it. */
#define TOWA_PDELETE(type, ptr) towa_free((type *){(ptr)})
#endif

#endif /* TOWA_H */
