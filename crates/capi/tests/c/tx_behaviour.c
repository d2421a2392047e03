/*
 * tx_behaviour.c - what towa_tx.h promises, checked from C. `tx_behaviour POOL TEST` runs one test in a fresh pool and exits with 0 if
 * it holds. Here: transactions; in tx_threads.h: of several threads; in tx_misuse.h: misuse; in tx_trees.h: trees.
 */
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <towa_tx.h>
#include <unistd.h>

static int failures;

#define EXPECT(condition)                                                                                                          \
    do {                                                                                                                           \
        if (!(condition)) {                                                                                                        \
            fprintf(stderr, "%s:%d: not so: %s (last error: %s)\n", __FILE__, __LINE__, #condition, towa_last_error());            \
            failures++;                                                                                                            \
        }                                                                                                                          \
    } while (0)
/* `call` gives `code`, and the message names what it is about. */
#define EXPECT_ERROR(call, code, word)                                                                                             \
    do {                                                                                                                           \
        int got_ = (call);                                                                                                         \
        if (got_ != (code) || towa_last_error_code() != (code) || !strstr(towa_last_error(), word)) {                              \
            fprintf(stderr, "%s:%d: %s gave %d (%s), expected %d with '%s'\n", __FILE__, __LINE__, #call, got_, towa_last_error(), \
                    code, word);                                                                                                   \
            failures++;                                                                                                            \
        }                                                                                                                          \
    } while (0)
/* The same for what gives a pointer. */
#define EXPECT_NULL(call, code, word) EXPECT_ERROR((call) ? TOWA_OK : towa_last_error_code(), code, word)
#define OK(call) EXPECT((call) == TOWA_OK)
#define PASS_ON(call)        \
    do {                     \
        int rc_ = (call);    \
        if (rc_ != TOWA_OK)  \
            return rc_;      \
    } while (0)

static const char *path;
static towa_dtx_options small = {sizeof(towa_dtx_options), 0, 0, 0, 0, 0, 0, 16, 16u << 20, 1u << 20, 0, 0};
static towa_dtx_pool *pool;
static towa_dtx_thread *thread;

struct cells {
    uint64_t a, b;
    uint64_t rest[62];
};
static struct cells *cells;

static int make_cells(towa_dtx *tx, void *arg)
{
    void *block;
    (void)arg;
    PASS_ON(towa_dtx_alloc(tx, sizeof *cells, &block));
    memset(block, 0, sizeof *cells); /* still the transaction's own */
    PASS_ON(towa_dtx_set_root(tx, "cells", 1, sizeof *cells, block));
    return 0;
}

static void begin(void)
{
    void *object = NULL;
    pool = towa_dtx_pool_open(path, &small);
    EXPECT(pool);
    thread = towa_dtx_register(pool);
    EXPECT(thread);
    if (towa_dtx_pool_root(pool, "cells", 1, sizeof *cells, &object) == TOWA_ENOENT) {
        OK(towa_dtx_run(thread, make_cells, NULL));
        OK(towa_dtx_pool_root(pool, "cells", 1, sizeof *cells, &object));
    }
    cells = object;
}

static void end(void)
{
    OK(towa_dtx_unregister(thread));
    OK(towa_dtx_pool_close(pool));
}

/* ---- commit and abort ---- */

struct pair {
    uint64_t a, b;
    int then; /* what the body returns */
};

static int set_pair(towa_dtx *tx, void *arg)
{
    const struct pair *p = arg;
    uint64_t a = 0;
    PASS_ON(towa_dtx_write(tx, &cells->a, p->a));
    PASS_ON(towa_dtx_write(tx, &cells->b, p->b));
    PASS_ON(towa_dtx_read(tx, &cells->a, &a));
    EXPECT(a == p->a);
    return p->then;
}

static int get_pair(towa_dtx *tx, void *arg)
{
    struct pair *p = arg;
    PASS_ON(towa_dtx_read(tx, &cells->a, &p->a));
    PASS_ON(towa_dtx_read(tx, &cells->b, &p->b));
    return 0;
}

static int holds(uint64_t a, uint64_t b)
{
    struct pair p = {0, 0, 0};
    return towa_dtx_run(thread, get_pair, &p) == TOWA_OK && p.a == a && p.b == b;
}

static void test_commit(void)
{
    struct pair p = {1, 2, 0};
    struct towa_dtx_stats stats = {.size = sizeof stats};
    begin();
    EXPECT(holds(0, 0));
    OK(towa_dtx_run(thread, set_pair, &p));
    EXPECT(holds(1, 2));
    p = (struct pair){3, 4, 0};
    OK(towa_dtx_run_software(thread, set_pair, &p));
    OK(towa_dtx_pool_stats(pool, &stats));
    EXPECT(stats.size == sizeof stats && stats.tm >= TOWA_DTX_TM_RTM && stats.tm <= TOWA_DTX_TM_LOCK);
    EXPECT(stats.commits_hardware + stats.commits_software == 5 && stats.commits_read_only == 2 && stats.log_bytes > 0);
    end();
    begin();
    EXPECT(holds(3, 4));
    OK(towa_dtx_pool_checkpoint(pool));
    OK(towa_dtx_pool_sync(pool));
    end();
    begin();
    EXPECT(holds(3, 4));
    end();
}

static void test_abort(void)
{
    struct pair p = {1, 2, 0};
    begin();
    OK(towa_dtx_run(thread, set_pair, &p));
    p = (struct pair){8, 9, 77};
    EXPECT(towa_dtx_run(thread, set_pair, &p) == 77);
    EXPECT(towa_dtx_run_software(thread, set_pair, &p) == 77);
    p.then = TOWA_ENOENT;
    EXPECT_ERROR(towa_dtx_run(thread, set_pair, &p), TOWA_ENOENT, "gave up");
    EXPECT(holds(1, 2));
    end();
    begin();
    EXPECT(holds(1, 2));
    end();
}

/* ---- blocks and roots ---- */

static int make_and_give_up(towa_dtx *tx, void *arg)
{
    void **block = arg;
    PASS_ON(towa_dtx_alloc(tx, 100, block));
    PASS_ON(towa_dtx_set_root(tx, "gone", 1, 100, *block));
    return 1;
}

static int make_text(towa_dtx *tx, void *arg)
{
    const char *text = arg;
    char *block;
    void *any;
    PASS_ON(towa_dtx_alloc(tx, 1000, &any));
    block = any;
    PASS_ON(towa_dtx_init(tx, block, text, strlen(text) + 1));
    PASS_ON(towa_dtx_init(tx, block + 992, "12345678", 8));
    return towa_dtx_set_root(tx, "text", 2, 1000, block);
}

static int drop_text(towa_dtx *tx, void *arg)
{
    PASS_ON(towa_dtx_set_root(tx, "text", 0, 0, NULL));
    PASS_ON(towa_dtx_free(tx, NULL));
    return towa_dtx_free(tx, arg);
}

static int free_twice(towa_dtx *tx, void *arg)
{
    PASS_ON(towa_dtx_free(tx, arg));
    return towa_dtx_free(tx, arg);
}

static int init_wrongly(towa_dtx *tx, void *arg)
{
    void *block;
    PASS_ON(towa_dtx_alloc(tx, 64, &block));
    EXPECT(((uintptr_t)block & 15) == 0);
    switch (*(int *)arg) {
    case 0: return towa_dtx_init(tx, block, cells, 65);
    case 1: return towa_dtx_init(tx, cells, block, 8);
    case 2: return towa_dtx_init(tx, (char *)block + 4, cells, 8);
    case 3: return towa_dtx_init(tx, block, NULL, 8);
    default: return towa_dtx_init(tx, block, cells, SIZE_MAX);
    }
}

static void test_blocks(void)
{
    static const int codes[] = {TOWA_EUSAGE, TOWA_EUSAGE, TOWA_ERANGE, TOWA_EINVAL, TOWA_ERANGE};
    char text[] = "a text that is longer than one line of sixty-four bytes, so that it takes more than one";
    void *block = NULL;
    int i;
    begin();
    EXPECT(towa_dtx_run(thread, make_and_give_up, &block) == 1);
    EXPECT_ERROR(towa_dtx_pool_root(pool, "gone", 1, 100, &block), TOWA_ENOENT, "gone");
    OK(towa_dtx_run(thread, make_text, text));
    EXPECT_ERROR(towa_dtx_pool_root(pool, "text", 2, 999, &block), TOWA_ETYPE, "text");
    end();
    begin();
    OK(towa_dtx_pool_root(pool, "text", 2, 1000, &block));
    EXPECT(strcmp(block, text) == 0 && memcmp((char *)block + 992, "12345678", 8) == 0);
    EXPECT_ERROR(towa_dtx_run(thread, free_twice, block), TOWA_EUSAGE, "twice");
    EXPECT_ERROR(towa_dtx_run(thread, drop_text, (char *)block + 16), TOWA_EUSAGE, "no live block");
    EXPECT_ERROR(towa_dtx_run(thread, drop_text, text), TOWA_ERANGE, "towa_dtx_free");
    OK(towa_dtx_pool_root(pool, "text", 2, 1000, &block));
    OK(towa_dtx_run(thread, drop_text, block));
    EXPECT_ERROR(towa_dtx_pool_root(pool, "text", 2, 1000, &block), TOWA_ENOENT, "text");
    for (i = 0; i < 5; i++)
        EXPECT(towa_dtx_run(thread, init_wrongly, &i) == codes[i]);
    end();
}

struct filler {
    size_t size;
    int round;
};

static int fill(towa_dtx *tx, void *arg)
{
    const struct filler *f = arg;
    void *block;
    (void)f->round;
    return towa_dtx_alloc(tx, f->size, &block);
}

static int write_much(towa_dtx *tx, void *arg)
{
    void *block;
    size_t words = *(size_t *)arg, i;
    PASS_ON(towa_dtx_alloc(tx, words * 8, &block));
    for (i = 0; i < words; i++)
        ((uint64_t *)block)[i] = i;
    return 0;
}

static void test_out_of_space(void)
{
    struct filler f = {1u << 18, 0};
    struct pair p = {5, 6, 0};
    size_t words = 100000; /* of a log of 1 MiB half is too small for them */
    int rc = TOWA_OK;
    begin();
    while (rc == TOWA_OK && f.round++ < 1000)
        rc = towa_dtx_run(thread, fill, &f);
    EXPECT(rc == TOWA_ENOSPC && strstr(towa_last_error(), "out of space"));
    EXPECT(f.round > 10);
    OK(towa_dtx_run(thread, set_pair, &p)); /* the pool stays good */
    end();
    begin();
    EXPECT(holds(5, 6));
    end();
    path = strcat(strcpy(malloc(strlen(path) + 5), path), "-two");
    begin();
    EXPECT_ERROR(towa_dtx_run(thread, write_much, &words), TOWA_ETOOBIG, "larger logs");
    f.size = (size_t)-1;
    EXPECT_ERROR(towa_dtx_run(thread, fill, &f), TOWA_ENOSPC, "out of space");
    words = 10000;
    OK(towa_dtx_run(thread, write_much, &words));
    end();
    free((char *)path);
}

#include "tx_threads.h"

/* ---- death in the middle ---- */

static int die(towa_dtx *tx, void *arg)
{
    (void)arg;
    PASS_ON(towa_dtx_write(tx, &cells->a, 1000000));
    PASS_ON(towa_dtx_free(tx, NULL)); /* from here on in software */
    _exit(9);
}

static void test_exit_in_the_middle(void)
{
    int round, status;
    for (round = 0; round < 5; round++) {
        pid_t child = fork();
        if (child == 0) {
            int i;
            begin();
            EXPECT(holds((uint64_t)round * 100, (uint64_t)round * 100));
            for (i = 0; i < 100; i++)
                OK(towa_dtx_run(thread, add_one, NULL));
            if (failures)
                _exit(1);
            towa_dtx_run(thread, die, NULL);
            _exit(1);
        }
        EXPECT(child > 0 && waitpid(child, &status, 0) == child);
        EXPECT(WIFEXITED(status) && WEXITSTATUS(status) == 9);
    }
    begin();
    EXPECT(holds(500, 500));
    end();
}

#include "tx_misuse.h"
#include "tx_trees.h"

static const struct {
    const char *name;
    void (*run)(void);
} tests[] = {
    {"commit", test_commit},
    {"abort", test_abort},
    {"blocks", test_blocks},
    {"out_of_space", test_out_of_space},
    {"conflict", test_conflict},
    {"buffered", test_buffered},
    {"volatile", test_volatile},
    {"again", test_again},
    {"exit_in_the_middle", test_exit_in_the_middle},
    {"nested", test_nested},
    {"misuse", test_misuse},
    {"handles", test_handles},
    {"options", test_options},
    {"tree_of_numbers", test_tree_of_numbers},
    {"tree_of_texts", test_tree_of_texts},
    {"loading", test_loading},
    {"loading_fptree", test_loading_fptree},
    {"fptree", test_fptree},
    {"tree_threads", test_tree_threads},
    {"tree_misuse", test_tree_misuse},
    {"tree_destroyed", test_tree_destroyed},
};

int main(int argc, char **argv)
{
    size_t i;
    for (i = 0; i < sizeof tests / sizeof *tests; i++) {
        if (argc == 2 && strcmp(argv[1], "--list") == 0)
            puts(tests[i].name);
        if (argc == 3 && strcmp(argv[2], tests[i].name) == 0) {
            path = argv[1];
            tests[i].run();
            return failures ? 1 : 0;
        }
    }
    return argc == 2 && strcmp(argv[1], "--list") == 0 ? 0 : 2;
}
