/* The part of tx_behaviour.c about nesting and wrong arguments: none ends the program, and none commits. Included there. */

/* ---- bodies in bodies ---- */

static int inner_writes(towa_dtx *tx, void *arg)
{
    const int *then = arg;
    PASS_ON(towa_dtx_write(tx, &cells->b, 2));
    return *then;
}

/* Writes, runs another body within, and says that all is well. */
static int outer_writes(towa_dtx *tx, void *arg)
{
    uint64_t b = 0;
    int rc;
    PASS_ON(towa_dtx_write(tx, &cells->a, 1));
    rc = towa_dtx_run(thread, inner_writes, arg);
    if (rc == 0) {
        PASS_ON(towa_dtx_read(tx, &cells->b, &b));
        EXPECT(b == 2);
    } else {
        EXPECT(towa_dtx_read(tx, &cells->b, &b) == rc);
    }
    return 0;
}

static void test_nested(void)
{
    int then = 5;
    struct pair p = {0, 0, 0};
    begin();
    EXPECT(towa_dtx_run(thread, outer_writes, &then) == 5);
    then = TOWA_ETYPE;
    EXPECT_ERROR(towa_dtx_run(thread, outer_writes, &then), TOWA_ETYPE, "inner");
    EXPECT(holds(0, 0));
    then = 0;
    OK(towa_dtx_run(thread, outer_writes, &then));
    EXPECT(holds(1, 2));
    OK(towa_dtx_run(thread, set_pair, &p));
    OK(towa_dtx_run_software(thread, outer_writes, &then));
    EXPECT(holds(1, 2));
    end();
}

/* ---- misuse ---- */

struct wrong {
    int which;
    int seen;
};

static towa_dtx *kept; /* longer than it is good */
static towa_dtx_thread *second;
static towa_dtx_pool *other_pool;

static void *from_another_thread(void *tx)
{
    uint64_t value = 0;
    EXPECT_ERROR(towa_dtx_read(tx, &cells->a, &value), TOWA_EUSAGE, "outside a body");
    EXPECT_ERROR(towa_dtx_run(thread, get_pair, NULL), TOWA_EUSAGE, "another thread uses");
    EXPECT_ERROR(towa_dtx_unregister(thread), TOWA_EUSAGE, "another thread uses");
    return NULL;
}

/* Does one thing wrong, notes its code, and wants to commit. */
static int do_wrong(towa_dtx *tx, void *arg)
{
    struct wrong *w = arg;
    uint64_t value = 42, stack = 0;
    void *block = NULL;
    pthread_t thread_of_its_own;
    kept = tx;
    PASS_ON(towa_dtx_write(tx, &cells->a, 99));
    switch (w->which) {
    case 0: w->seen = towa_dtx_read(tx, &stack, &value); break;
    case 1: w->seen = towa_dtx_write(tx, &stack, 1); break;
    case 2: w->seen = towa_dtx_read(tx, (uint64_t *)((char *)&cells->a + 1), &value); break;
    case 3: w->seen = towa_dtx_read(tx, NULL, &value); break;
    case 4: w->seen = towa_dtx_read(tx, &cells->a, NULL); break;
    case 5: w->seen = towa_dtx_write(tx, (uint64_t *)UINTPTR_MAX, 1); break;
    case 6: w->seen = towa_dtx_set_root(tx, "", 1, 8, cells); break;
    case 7: w->seen = towa_dtx_set_root(tx, NULL, 1, 8, cells); break;
    case 8: w->seen = towa_dtx_set_root(tx, "x", 1, 8, &stack); break;
    case 9: w->seen = towa_dtx_alloc(tx, 8, NULL); break;
    case 10: w->seen = towa_dtx_alloc(tx, SIZE_MAX, &block); break;
    case 11: { /* the heap's first word belongs to the pool */
        void *first;
        OK(towa_dtx_pool_heap(pool, &first, NULL));
        w->seen = towa_dtx_write(tx, first, 0);
        break;
    }
    /* From here on: what is refused beside the transaction, which may go on. */
    case 12: w->seen = towa_dtx_run(second, get_pair, NULL); break;
    case 13: w->seen = towa_dtx_pool_sync(pool); break;
    case 14: w->seen = towa_dtx_pool_close(pool); break;
    case 15: w->seen = towa_dtx_unregister(thread); break;
    case 16: w->seen = towa_dtx_pool_checkpoint(pool); break;
    case 17: w->seen = towa_dtx_register(pool) ? TOWA_OK : towa_last_error_code(); break;
    case 18: w->seen = towa_tree_open(pool, "tree", TOWA_TREE_U64) ? TOWA_OK : towa_last_error_code(); break;
    case 19: w->seen = towa_dtx_pool_sync(other_pool); break;
    case 20: w->seen = towa_dtx_read((towa_dtx *)second, &cells->a, &value); break;
    default:
        PASS_ON(towa_dtx_free(tx, NULL)); /* another thread starts in software only */
        EXPECT(pthread_create(&thread_of_its_own, NULL, from_another_thread, tx) == 0);
        pthread_join(thread_of_its_own, NULL);
        w->seen = TOWA_EUSAGE;
    }
    EXPECT(value == 42);
    return 0;
}

static int passes_on_what_was_refused(towa_dtx *tx, void *unused)
{
    (void)tx, (void)unused;
    return towa_dtx_pool_sync(pool);
}

static void test_misuse(void)
{
    static const int codes[] = {TOWA_ERANGE, TOWA_ERANGE, TOWA_ERANGE, TOWA_ERANGE, TOWA_EINVAL, TOWA_ERANGE,
                                TOWA_EINVAL, TOWA_EINVAL, TOWA_ERANGE, TOWA_EINVAL, TOWA_ENOSPC, TOWA_ERANGE};
    static const towa_dtx_options keeps_nothing = {sizeof keeps_nothing, 0, 0, 0, 0, 0, TOWA_DTX_VOLATILE, 0, 1u << 20, 0, 0, 0};
    struct pair p = {0, 0, 0};
    struct wrong w = {0, 0};
    uint64_t value = 0;
    int software;
    begin();
    second = towa_dtx_register(pool);
    other_pool = towa_dtx_pool_open(NULL, &keeps_nothing);
    EXPECT(second && other_pool);
    for (software = 0; software < 2; software++)
        for (w.which = 0; w.which <= 21; w.which++) {
            int expected = w.which < 12 ? codes[w.which] : TOWA_OK, rc;
            w.seen = 1;
            rc = software ? towa_dtx_run_software(thread, do_wrong, &w) : towa_dtx_run(thread, do_wrong, &w);
            if (rc != expected || w.seen != (expected ? expected : TOWA_EUSAGE)) {
                fprintf(stderr, "misuse %d gave %d, and the run %d (%s)\n", w.which, w.seen, rc, towa_last_error());
                failures++;
            }
            EXPECT(holds(expected ? 0 : 99, 0));
            OK(towa_dtx_run(thread, set_pair, &p));
        }
    EXPECT_ERROR(towa_dtx_run(thread, passes_on_what_was_refused, NULL), TOWA_EUSAGE, "towa_dtx_pool_sync inside the body");
    EXPECT_ERROR(towa_dtx_read(kept, &cells->a, &value), TOWA_EUSAGE, "outside a body");
    EXPECT_ERROR(towa_dtx_write(NULL, &cells->a, 1), TOWA_EINVAL, "NULL");
    EXPECT_ERROR(towa_dtx_run(thread, NULL, NULL), TOWA_EINVAL, "no body");
    OK(towa_dtx_unregister(second));
    OK(towa_dtx_pool_close(other_pool));
    end();
}

static void test_handles(void)
{
    void *object;
    towa_dtx_pool *closed;
    towa_dtx_thread *all[17];
    towa_pool *of_another_door;
    int i;
    begin();
    EXPECT_ERROR(towa_dtx_pool_close(pool), TOWA_EBUSY, "1 thread(s)");
    EXPECT_NULL(towa_dtx_pool_open(path, &small), TOWA_EBUSY, "");
    for (i = 0; i < 15; i++)
        EXPECT((all[i] = towa_dtx_register(pool)) != NULL);
    EXPECT_NULL(towa_dtx_register(pool), TOWA_EBUSY, "16 logs");
    for (i = 0; i < 15; i++)
        OK(towa_dtx_unregister(all[i]));
    EXPECT_ERROR(towa_dtx_unregister(all[0]), TOWA_EUSAGE, "closed already");
    EXPECT_ERROR(towa_dtx_run(all[0], get_pair, NULL), TOWA_EUSAGE, "closed already");
    EXPECT_ERROR(towa_dtx_run(NULL, get_pair, NULL), TOWA_EINVAL, "NULL");
    EXPECT_ERROR(towa_dtx_run((towa_dtx_thread *)pool, get_pair, NULL), TOWA_EUSAGE, "another kind");
    EXPECT_ERROR(towa_dtx_pool_root(pool, NULL, 0, 0, &object), TOWA_EINVAL, "root name");
    EXPECT_ERROR(towa_dtx_pool_root(pool, "cells", 1, sizeof *cells, NULL), TOWA_EINVAL, "NULL");
    closed = pool;
    end();
    EXPECT_ERROR(towa_dtx_pool_close(closed), TOWA_EUSAGE, "closed already");
    EXPECT_ERROR(towa_dtx_pool_sync(NULL), TOWA_EINVAL, "NULL");
    EXPECT_NULL(towa_dtx_register(closed), TOWA_EUSAGE, "closed already");
    /* The doors do not open each other's pools. */
    of_another_door = towa_pool_open(path, NULL);
    EXPECT(!of_another_door && towa_last_error_code() == TOWA_EDAMAGED);
}

static void test_options(void)
{
    struct {
        towa_dtx_options options;
        uint64_t more;
    } newer = {small, 0};
    towa_dtx_options wrong = small;
    struct towa_dtx_stats stats = {.size = 3};
    EXPECT_NULL(towa_dtx_pool_open(NULL, NULL), TOWA_EINVAL, "no path");
#define WRONG(field, value, code, word)                   \
    do {                                                  \
        wrong = small;                                    \
        wrong.field = value;                              \
        EXPECT_NULL(towa_dtx_pool_open(path, &wrong), code, word); \
    } while (0)
    WRONG(size, 0, TOWA_EINVAL, "TOWA_DTX_OPTIONS_INIT");
    WRONG(open, 3, TOWA_EINVAL, "open");
    WRONG(open, TOWA_OPEN_EXISTING, TOWA_ENOENT, "");
    WRONG(medium, 9, TOWA_EINVAL, "medium");
    WRONG(tm, 4, TOWA_EINVAL, "tm");
    WRONG(commit, 2, TOWA_EINVAL, "commit");
    WRONG(checkpointer, 3, TOWA_EINVAL, "checkpointer");
    WRONG(flags, 8, TOWA_EINVAL, "flags");
    WRONG(heap_len, UINT64_MAX, TOWA_EINVAL, "heap_len");
    WRONG(lanes, 65, TOWA_EINVAL, "");
    newer.options.size = sizeof newer;
    newer.more = 1;
    EXPECT_NULL(towa_dtx_pool_open(path, &newer.options), TOWA_EINVAL, "update libtowa");
    begin();
    WRONG(open, TOWA_CREATE_NEW, TOWA_EBUSY, "");
    EXPECT_ERROR(towa_dtx_pool_stats(pool, &stats), TOWA_EINVAL, "sizeof");
    EXPECT_ERROR(towa_dtx_pool_stats(pool, NULL), TOWA_EINVAL, "NULL");
    stats.size = 16;
    stats.commits_hardware = 123456;
    OK(towa_dtx_pool_stats(pool, &stats));
    EXPECT(stats.size == 16 && stats.tm != 0 && stats.commits_hardware == 123456);
    end();
    WRONG(open, TOWA_CREATE_NEW, TOWA_EEXIST, "");
    small.checkpointer = TOWA_DTX_CHECKPOINTER_MANUAL;
    begin();
    count_together(0);
    OK(towa_dtx_pool_checkpoint(pool));
    end();
    small.checkpointer = TOWA_DTX_CHECKPOINTER_PROCESS;
    begin();
    count_together(THREADS * ADDITIONS);
    end();
}
