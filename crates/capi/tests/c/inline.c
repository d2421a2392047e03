/*
 * inline.c - everything that towa.h defines itself, macros and inline functions, in strict ISO C: compiled in every standard with
 * every warning, and run.
 */
#include <towa.h>
#include <towa.h>

struct node { uint64_t key; struct node *next; };
int main(void)
{
    towa_options o = TOWA_OPTIONS_INIT;
    struct towa_stats stats = {0};
    struct node *n;
    int failed;
    o.mode = TOWA_MODE_VOLATILE;
    o.heap_len = 64u << 20;
    stats.size = sizeof stats;
    failed = towa_init(NULL, &o) | towa_thread_init() | towa_transaction_start();
    n = TOWA_PNEW(struct node, .key = 1, .next = NULL);
    if (failed || !n)
        return 1;
    failed = TOWA_ROOT_SET(struct node, "n", n) | TOWA_MARK(n->key) | towa_tx_mark(towa_thread_on(NULL), n, sizeof *n);
    failed |= towa_transaction_end() | towa_transaction_start_undoable() | towa_mark(n, sizeof *n);
    n->key = 2;
    failed |= towa_transaction_abort() | towa_stats(&stats) | towa_sync() | towa_checkpoint();
    failed |= towa_set_interval_us(towa_interval_us()) | towa_wait_durable(0, 0);
    failed |= TOWA_ROOT_GET(struct node, "n") != n || n->key != 1 || towa_epoch() < towa_durable_epoch();
    failed |= towa_transaction_start() | towa_free(towa_alloc(10)) | TOWA_PDELETE(struct node, n) | towa_transaction_end();
    return failed | towa_thread_exit() | towa_finalize() || towa_version() != TOWA_VERSION;
}
