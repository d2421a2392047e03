/*
 * counter.c - a counter that survives kill -9.
 *
 *     counter POOL          counts for ever, from where it was; prints "durable COUNT" every 100 ms
 *     counter POOL show     prints the count
 *
 *     cc counter.c $(pkg-config --cflags --libs towa) -o counter
 *
 * Kill it any time and start it again: the count goes on from at most one interval (100 ms) before, never below what it last
 * called durable. `count` and `copy` are written in one transaction, so they are always equal.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <towa.h>

struct counter {
    uint64_t count;
    char elsewhere[4096]; /* so that the two lie on different lines and pages */
    uint64_t copy;
};

static void check(int code)
{
    if (code == TOWA_OK)
        return;
    fprintf(stderr, "counter: %s\n", towa_last_error());
    exit(1);
}

int main(int argc, char **argv)
{
    struct counter *c;
    towa_options options = TOWA_OPTIONS_INIT;
    if (argc < 2 || argc > 3 || (argc == 3 && strcmp(argv[2], "show") != 0)) {
        fprintf(stderr, "usage: counter POOL [show]\n");
        return 2;
    }
    options.heap_len = 16u << 20;
    check(towa_init(argv[1], &options));
    check(towa_thread_init());
    c = TOWA_ROOT_GET(struct counter, "counter");
    if (!c) {
        if (towa_last_error_code() != TOWA_ENOENT)
            check(towa_last_error_code());
        check(towa_transaction_start());
        c = TOWA_PNEW(struct counter, .count = 0);
        if (!c)
            check(towa_last_error_code());
        check(TOWA_ROOT_SET(struct counter, "counter", c));
        check(towa_transaction_end());
    }
    if (c->count != c->copy) {
        fprintf(stderr, "counter: damaged: %" PRIu64 " and %" PRIu64 "\n", c->count, c->copy);
        return 1;
    }
    if (argc == 3) {
        printf("%" PRIu64 "\n", c->count);
    } else {
        uint64_t announced_epoch = 0, announced = 0;
        for (;;) {
            check(towa_transaction_start());
            if (announced_epoch == 0) { /* remember a count and the epoch that holds it */
                announced_epoch = towa_tx_epoch(NULL);
                announced = c->count + 1;
            }
            check(TOWA_MARK(c->count));
            c->count++;
            check(TOWA_MARK(c->copy));
            c->copy++;
            check(towa_transaction_end());
            if (towa_durable_epoch() >= announced_epoch) {
                printf("durable %" PRIu64 "\n", announced);
                fflush(stdout);
                announced_epoch = 0;
            }
        }
    }
    check(towa_finalize());
    return 0;
}
