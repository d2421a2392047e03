/*
 * behaviour.c - what towa.h promises, checked from C. `behaviour POOL TEST` runs one test in a fresh pool and exits with 0 if it holds.
 */
#include <inttypes.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <towa.h>

static int failures;

#define EXPECT(condition)                                                                                                                    \
    do {                                                                                                                                     \
        if (!(condition)) {                                                                                                                  \
            fprintf(stderr, "%s:%d: not so: %s (last error: %s)\n", __FILE__, __LINE__, #condition, towa_last_error());                      \
            failures++;                                                                                                                      \
        }                                                                                                                                    \
    } while (0)
/* `call` gives `code`, and the message names what it is about. */
#define EXPECT_ERROR(call, code, word)                                                                                                       \
    do {                                                                                                                                     \
        int got_ = (call);                                                                                                                   \
        if (got_ != (code) || towa_last_error_code() != (code) || !strstr(towa_last_error(), word)) {                                        \
            fprintf(stderr, "%s:%d: %s gave %d (%s), expected %d with '%s'\n", __FILE__, __LINE__, #call, got_, towa_last_error(), code,     \
                    word);                                                                                                                   \
            failures++;                                                                                                                      \
        }                                                                                                                                    \
    } while (0)
#define OK(call) EXPECT((call) == TOWA_OK)

struct item {
    uint64_t a, b;
    struct item *next;
};

static const char *path;
static const towa_options small = {sizeof(towa_options), 0, 0, 0, 0, 0, 16u << 20, 0, 0, 0};

static struct item *make_root(const char *name)
{
    struct item *p;
    OK(towa_transaction_start());
    p = TOWA_PNEW(struct item, .a = 1, .b = 2);
    EXPECT(p && p->a == 1 && p->b == 2 && !p->next);
    OK(TOWA_ROOT_SET(struct item, name, p));
    OK(towa_transaction_end());
    return p;
}

static void begin(void)
{
    OK(towa_init(path, &small));
    OK(towa_thread_init());
}

/* Closes and opens again: what a restart of the program sees. */
static struct item *reopen(const char *name)
{
    OK(towa_finalize());
    begin();
    return TOWA_ROOT_GET(struct item, name);
}

/* ---- misuse ---- */

static void *misuse_of_other(void *thread)
{
    EXPECT_ERROR(towa_tx_begin(thread, 0), TOWA_EUSAGE, "another thread attached it");
    EXPECT_ERROR(towa_transaction_start(), TOWA_EUSAGE, "not attached");
    EXPECT_ERROR(towa_thread_exit(), TOWA_EUSAGE, "not attached");
    return NULL;
}

static void test_misuse(void)
{
    pthread_t other;
    struct item *p, stack = {0};
    void *object = &stack;
    char long_name[TOWA_ROOT_NAME_MAX + 2];
    struct towa_stats stats = {0};

    EXPECT(towa_last_error_code() == TOWA_OK && !strcmp(towa_last_error(), ""));
    EXPECT(!strcmp(towa_strerror(TOWA_ENOSPC), "out of space") && towa_strerror(-12345));
    /* before init */
    EXPECT_ERROR(towa_thread_init(), TOWA_EUSAGE, "towa_init");
    EXPECT_ERROR(towa_sync(), TOWA_EUSAGE, "towa_init");
    EXPECT_ERROR(towa_finalize(), TOWA_EUSAGE, "towa_init");
    EXPECT_ERROR(towa_transaction_start(), TOWA_EUSAGE, "not attached");
    EXPECT(towa_epoch() == 0 && towa_last_error_code() == TOWA_EUSAGE);
    EXPECT(!towa_alloc(8) && !TOWA_ROOT_GET(struct item, "x"));
    EXPECT_ERROR(towa_init(NULL, NULL), TOWA_EINVAL, "path");
    begin();
    EXPECT_ERROR(towa_init(path, &small), TOWA_EUSAGE, "towa_init was called already");
    p = make_root("main");
    /* order */
    EXPECT_ERROR(towa_transaction_end(), TOWA_EUSAGE, "outside a transaction");
    EXPECT_ERROR(towa_transaction_abort(), TOWA_EUSAGE, "outside a transaction");
    EXPECT_ERROR(towa_mark(p, sizeof *p), TOWA_EUSAGE, "outside a transaction");
    EXPECT_ERROR(towa_tx_mark(towa_thread_on(NULL), p, sizeof *p), TOWA_EUSAGE, "outside a transaction");
    EXPECT_ERROR(towa_free(p), TOWA_EUSAGE, "outside a transaction");
    EXPECT(!towa_alloc(8) && towa_last_error_code() == TOWA_EUSAGE);
    EXPECT_ERROR(TOWA_ROOT_SET(struct item, "main", p), TOWA_EUSAGE, "outside a transaction");
    EXPECT_ERROR(towa_tx_begin(NULL, 6), TOWA_EINVAL, "flags");
    OK(towa_transaction_start());
    EXPECT_ERROR(towa_transaction_start(), TOWA_EUSAGE, "nest");
    EXPECT_ERROR(towa_sync(), TOWA_EUSAGE, "inside a transaction");
    EXPECT_ERROR(towa_checkpoint(), TOWA_EUSAGE, "inside a transaction");
    EXPECT_ERROR(towa_wait_durable(1, 0), TOWA_EUSAGE, "inside a transaction");
    EXPECT_ERROR(towa_thread_exit(), TOWA_EUSAGE, "inside a transaction");
    EXPECT_ERROR(towa_finalize(), TOWA_EBUSY, "inside a transaction");
    /* arguments */
    EXPECT_ERROR(towa_mark(&stack, sizeof stack), TOWA_ERANGE, "no open pool");
    EXPECT_ERROR(towa_tx_mark(NULL, &stack, sizeof stack), TOWA_ERANGE, "heap");
    EXPECT_ERROR(towa_free(&stack), TOWA_ERANGE, "not in its heap");
    EXPECT_ERROR(towa_root_set("main", 1, sizeof stack, &stack), TOWA_ERANGE, "heap");
    EXPECT_ERROR(towa_root_set(NULL, 1, 8, p), TOWA_EINVAL, "name");
    EXPECT_ERROR(towa_root_set("\xff", 1, 8, p), TOWA_EINVAL, "UTF-8");
    memset(long_name, 'x', sizeof long_name);
    long_name[sizeof long_name - 1] = 0;
    EXPECT(towa_root_set(long_name, 1, 8, p) != TOWA_OK);
    EXPECT(towa_root_set("", 1, 8, p) != TOWA_OK);
    EXPECT(!towa_alloc(0) && towa_last_error_code() == TOWA_EINVAL);
    EXPECT(!towa_alloc(SIZE_MAX) && towa_last_error_code() == TOWA_ENOSPC);
    EXPECT(!towa_alloc(17u << 20) && towa_last_error_code() == TOWA_ENOSPC);
    OK(towa_free(NULL));
    object = towa_alloc(100);
    OK(towa_free(object));
    EXPECT_ERROR(towa_free(object), TOWA_EUSAGE, "towa_free");
    EXPECT_ERROR(towa_free(&p->b), TOWA_EUSAGE, "towa_free");
    EXPECT(towa_pool_block_size(NULL, &p->b) == 0 && towa_last_error_code() == TOWA_EUSAGE);
    OK(towa_mark(p, 0));
    OK(towa_mark(NULL, 0));
    OK(towa_transaction_end()); /* none of it cost the transaction */
    EXPECT_ERROR(towa_pool_root(NULL, "none", 1, 8, &object), TOWA_ENOENT, "none");
    EXPECT_ERROR(towa_pool_root(NULL, "main", 1, sizeof *p, &object), TOWA_ETYPE, "main");
    EXPECT_ERROR(towa_pool_root(NULL, "main", towa_type_tag("struct item"), 8, &object), TOWA_ETYPE, "24 bytes");
    EXPECT_ERROR(towa_pool_root(NULL, "main", 1, 8, NULL), TOWA_EINVAL, "NULL");
    EXPECT_ERROR(towa_stats(NULL), TOWA_EINVAL, "NULL");
    EXPECT_ERROR(towa_stats(&stats), TOWA_EINVAL, "size");
    EXPECT_ERROR(towa_set_interval_us(0), TOWA_EINVAL, "interval");
    EXPECT(towa_pool_block_size(NULL, &stack) == 0 && towa_last_error_code() == TOWA_ERANGE);
    EXPECT(towa_pool_block_size(NULL, p) >= sizeof *p);
    EXPECT(pthread_create(&other, NULL, misuse_of_other, towa_thread_on(NULL)) == 0 && pthread_join(other, NULL) == 0);
    OK(towa_thread_exit());
    EXPECT_ERROR(towa_transaction_start(), TOWA_EUSAGE, "not attached");
    EXPECT_ERROR(towa_mark(p, 8), TOWA_EUSAGE, "not attached");
    OK(towa_finalize());
    EXPECT_ERROR(towa_finalize(), TOWA_EUSAGE, "towa_init");
}

static void test_options(void)
{
    towa_options o = small;
    struct {
        towa_options known;
        uint64_t later;
    } newer = {small, 0};
    towa_pool *pool;

    o.open = TOWA_OPEN_EXISTING;
    EXPECT(!towa_pool_open(path, &o) && towa_last_error_code() == TOWA_ENOENT);
    o.open = TOWA_CREATE_NEW;
    pool = towa_pool_open(path, &o);
    EXPECT(pool);
    EXPECT(!towa_pool_open(path, &small) && towa_last_error_code() == TOWA_EBUSY); /* one owner at a time */
    OK(towa_pool_close(pool));
    EXPECT(!towa_pool_open(path, &o) && towa_last_error_code() == TOWA_EEXIST);
    o.open = 3;
    EXPECT(!towa_pool_open(path, &o) && towa_last_error_code() == TOWA_EINVAL);
    o = small, o.mode = 9;
    EXPECT(!towa_pool_open(path, &o) && towa_last_error_code() == TOWA_EINVAL);
    o = small, o.medium = 9;
    EXPECT(!towa_pool_open(path, &o) && towa_last_error_code() == TOWA_EINVAL);
    o = small, o.flags = 64;
    EXPECT(!towa_pool_open(path, &o) && towa_last_error_code() == TOWA_EINVAL);
    o = small, o.size = 0;
    EXPECT(!towa_pool_open(path, &o) && towa_last_error_code() == TOWA_EINVAL);
    EXPECT(!towa_pool_open("/proc/none/such", &small) && towa_last_error_code() != TOWA_OK);
    /* the header of a newer library: fine as long as it asks for nothing unknown */
    newer.known.size = sizeof newer;
    pool = towa_pool_open(path, (towa_options *)(void *)&newer);
    EXPECT(pool);
    OK(towa_pool_close(pool));
    newer.later = 1;
    EXPECT(!towa_pool_open(path, (towa_options *)(void *)&newer) && towa_last_error_code() == TOWA_EINVAL);
    /* and of an older one */
    o = small, o.size = offsetof(towa_options, log_len), o.log_len = 1;
    pool = towa_pool_open(path, &o);
    EXPECT(pool);
    OK(towa_pool_close(pool));
}

/* ---- what is kept ---- */

static void test_reopen(void)
{
    struct item *p, *again;
    uint64_t i, n;
    begin();
    p = make_root("main");
    for (i = 0; i < 1000; i++) {
        struct item *q;
        OK(towa_transaction_start());
        q = TOWA_PNEW(struct item, .a = i, .b = ~i, .next = p->next);
        OK(TOWA_MARK(p->next));
        p->next = q;
        OK(towa_transaction_end());
    }
    again = reopen("main");
    EXPECT(again == p); /* the same address */
    for (n = 0, again = again->next; again; again = again->next, n++)
        EXPECT(again->a == 999 - n && again->b == ~again->a);
    EXPECT(n == 1000);
    OK(towa_transaction_start());
    OK(TOWA_ROOT_SET(struct item, "main", NULL));
    OK(TOWA_PDELETE(struct item, p));
    OK(towa_transaction_end());
    EXPECT(!TOWA_ROOT_GET(struct item, "main"));
    EXPECT(!reopen("main") && towa_last_error_code() == TOWA_ENOENT);
    OK(towa_finalize());
}

static void test_epochs(void)
{
    struct towa_stats stats = {0};
    struct {
        uint64_t size, epoch;
    } old = {sizeof old, 0};
    uint64_t epoch, durable = 0;
    struct item *p;
    begin();
    p = make_root("main");
    EXPECT(towa_interval_us() == 100000);
    OK(towa_set_interval_us(5000));
    EXPECT(towa_interval_us() == 5000);
    OK(towa_transaction_start());
    epoch = towa_tx_epoch(NULL);
    OK(TOWA_MARK(p->a));
    p->a = 77;
    OK(towa_transaction_end());
    EXPECT(epoch > 0 && towa_tx_epoch(NULL) == 0);
    OK(towa_pool_sync(NULL, &durable));
    EXPECT(durable >= epoch && towa_durable_epoch() >= epoch && towa_epoch() > epoch);
    OK(towa_wait_durable(epoch, 0));
    EXPECT_ERROR(towa_wait_durable(epoch + 1000000, 2000), TOWA_ETIMEDOUT, "not durable");
    stats.size = sizeof stats;
    OK(towa_stats(&stats));
    EXPECT(stats.size == sizeof stats && stats.durable_epoch >= epoch && stats.heap_len >= 1u << 20 && stats.threads == 1 && stats.checkpoints > 0);
    EXPECT(stats.heap_used >= sizeof(struct item));
    OK(towa_pool_stats(NULL, (struct towa_stats *)(void *)&old)); /* an older caller's struct is not overrun (the sanitizers watch) */
    EXPECT(old.size == sizeof old && old.epoch >= stats.epoch);
    OK(towa_finalize());
}

static void test_manual(void)
{
    towa_options o = small;
    struct item *p;
    uint64_t before, durable = 0;
    o.flags = TOWA_MANUAL;
    OK(towa_init(path, &o));
    OK(towa_thread_init());
    p = make_root("main");
    before = towa_durable_epoch();
    EXPECT_ERROR(towa_wait_durable(before + 1, 150000), TOWA_ETIMEDOUT, "not durable"); /* nothing happens by itself */
    OK(towa_pool_checkpoint(NULL, &durable));
    EXPECT(durable > before && towa_durable_epoch() == durable);
    (void)p;
    OK(towa_finalize());
}

/* ---- giving up ---- */

static void test_undo(void)
{
    struct item *p, *q;
    struct towa_stats before = {0}, after = {0};
    int i;
    begin();
    p = make_root("main");
    before.size = after.size = sizeof before;
    OK(towa_stats(&before));
    for (i = 0; i < 100; i++) {
        OK(towa_transaction_start());
        OK(towa_mark(p, sizeof *p));
        p->a = 10 + (unsigned)i;
        OK(towa_transaction_end());
        OK(towa_transaction_start_undoable());
        OK(towa_mark(p, sizeof *p)); /* this epoch has marked the line before: it must be saved all the same */
        p->a = 1000, p->b = 2000;
        q = TOWA_PNEW(struct item, .a = 5);
        EXPECT(q);
        p->next = q;
        OK(TOWA_ROOT_SET(struct item, "other", q));
        OK(towa_transaction_abort());
        EXPECT(p->a == 10 + (unsigned)i && p->b == 2 && !p->next);
        EXPECT(!TOWA_ROOT_GET(struct item, "other"));
    }
    OK(towa_stats(&after));
    EXPECT(after.heap_used == before.heap_used);
    OK(towa_transaction_start_undoable());
    OK(TOWA_MARK(p->b));
    p->b = 3;
    OK(towa_transaction_end());
    p = reopen("main");
    EXPECT(p && p->a == 109 && p->b == 3);
    OK(towa_finalize());
}

static void test_abort_poisons(void)
{
    struct item *p;
    begin();
    p = make_root("main");
    OK(towa_sync());
    OK(towa_transaction_start());
    OK(towa_mark(p, sizeof *p));
    p->a = 99;
    EXPECT_ERROR(towa_transaction_abort(), TOWA_EPOISONED, "UNDOABLE");
    EXPECT_ERROR(towa_transaction_start(), TOWA_EPOISONED, "poisoned");
    EXPECT_ERROR(towa_sync(), TOWA_EPOISONED, "poisoned");
    EXPECT(towa_finalize() == TOWA_EPOISONED); /* closed, but not with what was torn */
    begin();
    p = TOWA_ROOT_GET(struct item, "main");
    EXPECT(p && p->a == 1);
    OK(towa_finalize());
}

static void test_wild_mark_aborts(void)
{
    struct item *p;
    void *base;
    uint64_t len;
    begin();
    p = make_root("main");
    OK(towa_pool_heap(NULL, &base, &len));
    EXPECT((char *)p > (char *)base && (char *)p < (char *)base + len);
    OK(towa_transaction_start_undoable());
    OK(TOWA_MARK(p->a));
    p->a = 50;
    EXPECT_ERROR(towa_mark((char *)base + len - 8, 16), TOWA_ERANGE, "heap"); /* half in, half out */
    EXPECT_ERROR(towa_transaction_end(), TOWA_EUSAGE, "aborted");
    EXPECT(p->a == 1);
    OK(towa_transaction_start());
    OK(towa_transaction_end());
    OK(towa_finalize());
}

static void *dies(void *undoable)
{
    struct item *p = TOWA_ROOT_GET(struct item, "main");
    OK(towa_thread_init());
    OK(undoable ? towa_transaction_start_undoable() : towa_transaction_start());
    OK(towa_mark(p, sizeof *p));
    p->a = 1234;
    pthread_exit(NULL);
}

static void test_thread_death(void)
{
    pthread_t other;
    struct item *p;
    struct towa_stats stats = {0};
    stats.size = sizeof stats;
    begin();
    p = make_root("main");
    OK(towa_sync());
    EXPECT(pthread_create(&other, NULL, dies, &stats) == 0 && pthread_join(other, NULL) == 0);
    EXPECT(p->a == 1); /* rolled back */
    OK(towa_stats(&stats));
    EXPECT(stats.threads == 1); /* and detached */
    OK(towa_transaction_start());
    OK(towa_transaction_end());
    EXPECT(pthread_create(&other, NULL, dies, NULL) == 0 && pthread_join(other, NULL) == 0);
    EXPECT_ERROR(towa_transaction_start(), TOWA_EPOISONED, "poisoned");
    EXPECT(towa_finalize() == TOWA_EPOISONED);
    begin();
    p = TOWA_ROOT_GET(struct item, "main");
    EXPECT(p && p->a == 1);
    OK(towa_finalize());
}

/* ---- threads, several pools, the window ---- */

static pthread_barrier_t barrier;

static void *stays(void *unused)
{
    (void)unused;
    OK(towa_thread_init());
    pthread_barrier_wait(&barrier);
    pthread_barrier_wait(&barrier);
    return NULL; /* without towa_thread_exit */
}

static void test_threads(void)
{
    pthread_t other;
    struct item *p;
    begin();
    p = make_root("main");
    pthread_barrier_init(&barrier, NULL, 2);
    EXPECT(pthread_create(&other, NULL, stays, NULL) == 0);
    pthread_barrier_wait(&barrier);
    EXPECT_ERROR(towa_finalize(), TOWA_EBUSY, "2 thread");
    pthread_barrier_wait(&barrier);
    pthread_join(other, NULL);
    OK(towa_thread_init()); /* a second time: the refused close left the first */
    OK(towa_thread_exit());
    OK(towa_transaction_start()); /* still attached: it takes as many detaches as attaches */
    OK(TOWA_MARK(p->a));
    OK(towa_transaction_end());
    OK(towa_finalize());
}

static void test_two_pools(void)
{
    char second[4096];
    towa_pool *a, *b;
    towa_thread *ta, *tb;
    uint64_t *x, *y;
    void *found = NULL;
    snprintf(second, sizeof second, "%s-second", path);
    a = towa_pool_open(path, &small);
    b = towa_pool_open(second, &small);
    EXPECT(a && b && !towa_pool_default());
    ta = towa_thread_attach(a);
    tb = towa_thread_attach(b);
    EXPECT(ta && tb && ta != tb && towa_thread_on(a) == ta && towa_thread_on(b) == tb && !towa_thread_on(NULL));
    OK(towa_tx_begin(ta, 0));
    OK(towa_tx_begin(tb, 0));
    x = towa_tx_alloc_init(ta, sizeof *x, NULL);
    y = towa_tx_alloc_init(tb, sizeof *y, NULL);
    EXPECT(x && y && *x == 0 && *y == 0);
    OK(towa_mark(x, sizeof *x)); /* finds the pool by the address */
    OK(towa_mark(y, sizeof *y));
    EXPECT_ERROR(towa_tx_mark(ta, y, sizeof *y), TOWA_ERANGE, "heap");
    EXPECT_ERROR(towa_tx_free(tb, x), TOWA_ERANGE, "heap");
    *x = 1, *y = 2;
    OK(towa_tx_set_root(ta, "x", 7, sizeof *x, x));
    OK(towa_tx_set_root(tb, "y", 7, sizeof *y, y));
    OK(towa_tx_end(tb));
    EXPECT_ERROR(towa_mark(y, sizeof *y), TOWA_EUSAGE, "outside");
    OK(towa_mark(x, sizeof *x));
    OK(towa_tx_end(ta));
    EXPECT_ERROR(towa_pool_root(a, "y", 7, sizeof *y, &found), TOWA_ENOENT, "y");
    OK(towa_pool_root(b, "y", 7, sizeof *y, &found));
    EXPECT(found == y);
    EXPECT_ERROR(towa_pool_close(a), TOWA_EBUSY, "the calling one");
    EXPECT_ERROR(towa_pool_close(NULL), TOWA_EINVAL, "towa_finalize");
    OK(towa_thread_detach(ta));
    EXPECT_ERROR(towa_tx_begin(ta, 0), TOWA_EUSAGE, "detached already");
    OK(towa_pool_close(a));
    OK(towa_tx_begin(tb, 0));
    OK(towa_mark(y, sizeof *y));
    EXPECT_ERROR(towa_mark(x, sizeof *x), TOWA_ERANGE, "no open pool");
    OK(towa_tx_end(tb));
    OK(towa_thread_detach(NULL)); /* the current handle */
    OK(towa_pool_close(b));
}

static void test_window(void)
{
    struct item *p;
    const struct towa_window *w;
    begin();
    p = make_root("main");
    w = towa_self();
    EXPECT(w == towa_self());
    EXPECT(w->len == 0 && !w->untracked); /* closed: no transaction */
    OK(towa_transaction_start());
    OK(towa_mark(p, sizeof *p));
    EXPECT(w->len && towa_window_has_(w, p, sizeof *p) && !towa_window_has_(w, p, 4096)); /* the second mark costs no call */
    EXPECT(towa_window_has_((struct towa_window *)(void *)towa_thread_on(NULL), p, sizeof *p));
    OK(towa_transaction_end());
    EXPECT(!towa_window_has_(w, p, sizeof *p));
    OK(towa_transaction_start_undoable());
    OK(towa_mark(p, sizeof *p));
    EXPECT(!towa_window_has_(w, p, sizeof *p)); /* each line must be saved once per transaction: always ask */
    OK(towa_transaction_end());
    OK(towa_finalize());
}

static void test_volatile(void)
{
    towa_options o = small;
    struct item *p;
    o.mode = TOWA_MODE_VOLATILE;
    OK(towa_init(NULL, &o));
    OK(towa_thread_init());
    p = make_root("main");
    EXPECT(TOWA_ROOT_GET(struct item, "main") == p);
    OK(towa_transaction_start());
    EXPECT(towa_window_has_(towa_self(), p, sizeof *p));
    OK(towa_mark(p, sizeof *p));
    OK(towa_transaction_end());
    EXPECT_ERROR(towa_mark(p, sizeof *p), TOWA_EUSAGE, "outside");
    /* Nothing is tracked there, but what may be rolled back is. */
    OK(towa_transaction_start_undoable());
    EXPECT(!towa_window_has_(towa_self(), p, sizeof *p));
    OK(TOWA_MARK(p->a));
    p->a = 1000;
    OK(towa_tx_mark(towa_thread_on(NULL), &p->b, sizeof p->b));
    p->b = 2000;
    OK(towa_transaction_abort());
    EXPECT(p->a == 1 && p->b == 2);
    OK(towa_transaction_start_undoable());
    OK(TOWA_MARK(p->a));
    p->a = 3;
    OK(towa_transaction_end());
    EXPECT(p->a == 3);
    OK(towa_finalize());
}

/* Fills the heap; what did not fit changes nothing, and freeing makes room. */
static void test_full(void)
{
    struct item *p;
    void *block, *last = NULL;
    int n = 0, freed = 0;
    begin();
    p = make_root("main");
    for (;;) {
        OK(towa_transaction_start());
        block = towa_alloc(60000);
        if (!block)
            break;
        *(void **)block = last;
        last = block;
        n++;
        OK(towa_transaction_end());
    }
    EXPECT(towa_last_error_code() == TOWA_ENOSPC && strstr(towa_last_error(), "out of space"));
    OK(TOWA_MARK(p->a));
    p->a = (unsigned)n;
    OK(towa_transaction_end()); /* the pool stays good */
    EXPECT(n > 100);
    while (last) {
        OK(towa_transaction_start());
        block = last;
        last = *(void **)block;
        OK(towa_free(block));
        freed++;
        OK(towa_transaction_end());
    }
    EXPECT(freed == n);
    OK(towa_sync());
    OK(towa_transaction_start());
    EXPECT(towa_alloc(60000));
    OK(towa_transaction_end());
    p = reopen("main");
    EXPECT(p && p->a == (unsigned)n);
    OK(towa_finalize());
}

#include "behaviour_more.h"
#include "behaviour_hostile.h"

int main(int argc, char **argv)
{
    static const struct {
        const char *name;
        void (*run)(void);
    } tests[] = {
        {"misuse", test_misuse},   {"options", test_options}, {"reopen", test_reopen}, {"epochs", test_epochs},
        {"manual", test_manual},   {"undo", test_undo},       {"abort_poisons", test_abort_poisons},
        {"wild_mark_aborts", test_wild_mark_aborts},          {"thread_death", test_thread_death},
        {"threads", test_threads}, {"two_pools", test_two_pools}, {"window", test_window},
        {"volatile", test_volatile}, {"full", test_full},      {"conflict", test_conflict}, {"detector", test_detector},
        {"poisoned_meanwhile", test_poisoned_meanwhile},      {"reserving", test_reserving},
        {"containers", test_containers}, {"vector", test_vector}, {"handles", test_handles}, {"sizes", test_sizes},
        {"hostile_options", test_hostile_options},            {"visits", test_visits}, {"fork", test_fork},
        {"no_memory", test_no_memory}, {"pops", test_pops}, {"in_place", test_in_place},
    };
    size_t i;
    if (argc == 2 && !strcmp(argv[1], "--list")) {
        for (i = 0; i < sizeof tests / sizeof *tests; i++)
            puts(tests[i].name);
        return 0;
    }
    if (argc != 3)
        return 2;
    path = argv[1];
    for (i = 0; i < sizeof tests / sizeof *tests; i++)
        if (!strcmp(argv[2], tests[i].name)) {
            tests[i].run();
            return failures != 0;
        }
    fprintf(stderr, "no test '%s'\n", argv[2]);
    return 2;
}
