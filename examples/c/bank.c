/*
 * bank.c - a bank whose money survives kill -9: durable transactions (towa_tx.h).
 *
 *     bank POOL          transfers money for ever, in four threads; prints "durable COUNT" now and then
 *     bank POOL show     adds up all accounts, and prints the number of transfers
 *
 *     cc bank.c $(pkg-config --cflags --libs towa) -lpthread -o bank
 *
 * Kill it any time and start it again: no transfer is lost that was done, none is there by half, and the sum of all accounts is what it
 * was at the beginning. There are no locks: two transfers that meet at an account run one after the other.
 */
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <towa_tx.h>

enum { ACCOUNTS = 1000, BEGINNING = 100, TELLERS = 4 };

/* In the heap: it may hold numbers and pointers into the heap. */
struct bank {
    uint64_t balance[ACCOUNTS];
    struct {
        uint64_t done;
        uint64_t space[7]; /* each teller counts on a line of his own, so that they are not in each other's way */
    } teller[TELLERS];
};

static towa_dtx_pool *pool;
static struct bank *bank;

static void check(int code)
{
    if (code == TOWA_OK)
        return;
    fprintf(stderr, "bank: %s\n", towa_last_error());
    exit(1);
}

/* ---- bodies of transactions: they may run more than once, and pass on what fails ---- */

static int found(towa_dtx *tx, void *unused)
{
    void *block;
    int rc, i;
    (void)unused;
    if ((rc = towa_dtx_alloc(tx, sizeof *bank, &block)))
        return rc;
    /* Nobody else has this block yet, so it is filled as any memory. */
    memset(block, 0, sizeof *bank);
    for (i = 0; i < ACCOUNTS; i++)
        ((struct bank *)block)->balance[i] = BEGINNING;
    return towa_dtx_set_root(tx, "bank", 1, sizeof *bank, block);
}

struct transfer {
    unsigned teller, from, to;
    uint64_t amount;
};

enum { NOT_ENOUGH = 1 };

static int transfer(towa_dtx *tx, void *arg)
{
    const struct transfer *t = arg;
    uint64_t from, to, done;
    int rc;
    if ((rc = towa_dtx_read(tx, &bank->balance[t->from], &from)))
        return rc;
    if (from < t->amount)
        return NOT_ENOUGH; /* nothing of it happened */
    if ((rc = towa_dtx_write(tx, &bank->balance[t->from], from - t->amount)) ||
        (rc = towa_dtx_read(tx, &bank->balance[t->to], &to)) || /* after the write: they may be one account */
        (rc = towa_dtx_write(tx, &bank->balance[t->to], to + t->amount)) ||
        (rc = towa_dtx_read(tx, &bank->teller[t->teller].done, &done)))
        return rc;
    return towa_dtx_write(tx, &bank->teller[t->teller].done, done + 1);
}

struct sums {
    uint64_t money, done;
};

static int add_up(towa_dtx *tx, void *arg)
{
    struct sums *sums = arg;
    uint64_t word;
    int rc, i;
    sums->money = sums->done = 0; /* in every run */
    for (i = 0; i < ACCOUNTS; i++) {
        if ((rc = towa_dtx_read(tx, &bank->balance[i], &word)))
            return rc;
        sums->money += word;
    }
    for (i = 0; i < TELLERS; i++) {
        if ((rc = towa_dtx_read(tx, &bank->teller[i].done, &word)))
            return rc;
        sums->done += word;
    }
    return 0;
}

/* ---- the program ---- */

static struct sums all(towa_dtx_thread *thread)
{
    struct sums sums = {0, 0};
    check(towa_dtx_run(thread, add_up, &sums));
    if (sums.money != (uint64_t)ACCOUNTS * BEGINNING) {
        fprintf(stderr, "bank: there are %" PRIu64 ", not %d\n", sums.money, ACCOUNTS * BEGINNING);
        exit(1);
    }
    return sums;
}

static void *works(void *arg)
{
    towa_dtx_thread *thread = towa_dtx_register(pool);
    struct transfer t = {*(unsigned *)arg, 0, 0, 0};
    uint64_t random = t.teller + 1, done;
    if (!thread)
        check(towa_last_error_code());
    for (done = 1;; done++) {
        int rc;
        random = random * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
        t.from = (unsigned)(random >> 40) % ACCOUNTS;
        t.to = (unsigned)(random >> 20) % ACCOUNTS;
        t.amount = (random >> 58) + 1;
        if ((rc = towa_dtx_run(thread, transfer, &t)) != NOT_ENOUGH)
            check(rc);
        /* What has returned is durable, in every thread: so it can be promised. */
        if (t.teller == 0 && (done < 100 || done % 1000 == 0)) {
            printf("durable %" PRIu64 "\n", all(thread).done);
            fflush(stdout);
        }
    }
    return NULL;
}

int main(int argc, char **argv)
{
    towa_dtx_options options = TOWA_DTX_OPTIONS_INIT;
    towa_dtx_thread *thread;
    void *object = NULL;
    int rc;
    if (argc < 2 || argc > 3 || (argc == 3 && strcmp(argv[2], "show") != 0)) {
        fprintf(stderr, "usage: bank POOL [show]\n");
        return 2;
    }
    options.heap_len = 16u << 20;
    pool = towa_dtx_pool_open(argv[1], &options);
    thread = pool ? towa_dtx_register(pool) : NULL;
    if (!thread)
        check(towa_last_error_code());
    rc = towa_dtx_pool_root(pool, "bank", 1, sizeof *bank, &object);
    if (rc == TOWA_ENOENT) {
        check(towa_dtx_run_software(thread, found, NULL));
        rc = towa_dtx_pool_root(pool, "bank", 1, sizeof *bank, &object);
    }
    check(rc);
    bank = object;
    printf("%" PRIu64 "\n", all(thread).done);
    fflush(stdout);
    if (argc == 2) {
        pthread_t threads[TELLERS];
        unsigned numbers[TELLERS], i;
        for (i = 0; i < TELLERS; i++) {
            numbers[i] = i;
            if (pthread_create(&threads[i], NULL, works, &numbers[i]))
                return 1;
        }
        for (i = 0; i < TELLERS; i++)
            pthread_join(threads[i], NULL);
    }
    check(towa_dtx_unregister(thread));
    check(towa_dtx_pool_close(pool));
    return 0;
}
