/*
 * list.c - the persistent list of the paper (Fig. 1), with every mark it needs.
 *
 *     list POOL insert KEY VALUE      appends, and is durable when the command returns
 *     list POOL dump                  prints KEY VALUE, a line each, in order of insertion
 *     list POOL fill N                appends 0..N-1, four threads; prints "durable COUNT" now and then
 *
 *     cc list.c $(pkg-config --cflags --libs towa) -pthread -o list
 *
 * The figure marks the old tail only. The list's own struct is written too (`list->tail = node`), and so is marked here:
 * forgetting it leaves a list whose tail, after a crash, is a node that no longer is the last.
 */
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <towa.h>

struct node {
    int64_t key, value;
    struct node *next;
};

struct list {
    struct node *head, *tail;
    uint64_t count;
};

/* Locks live in ordinary memory: after a crash there is nobody to unlock one in the pool. */
static pthread_mutex_t list_lock = PTHREAD_MUTEX_INITIALIZER;

static void check(int code)
{
    if (code == TOWA_OK)
        return;
    fprintf(stderr, "list: %s\n", towa_last_error());
    exit(1);
}

/* The paper's insert. */
static int insert(struct list *list, int64_t key, int64_t value)
{
    int code;
    struct node *node;
    pthread_mutex_lock(&list_lock); /* the lock first, then the transaction */
    if ((code = towa_transaction_start()) == TOWA_OK) {
        node = TOWA_PNEW(struct node, .key = key, .value = value, .next = NULL);
        if (node) {
            if (list->tail) {
                TOWA_MARK(list->tail->next);
                list->tail->next = node;
            }
            TOWA_MARK(*list);
            if (!list->head)
                list->head = node;
            list->tail = node;
            list->count++;
        } else {
            code = towa_last_error_code(); /* full: nothing was changed, so the transaction may simply end */
        }
        if (towa_transaction_end() != TOWA_OK)
            code = towa_last_error_code();
    }
    pthread_mutex_unlock(&list_lock);
    return code;
}

/* The list of the pool; the first time, an empty one. */
static struct list *open_list(void)
{
    struct list *list = TOWA_ROOT_GET(struct list, "list");
    if (list)
        return list;
    if (towa_last_error_code() != TOWA_ENOENT)
        check(towa_last_error_code()); /* there, but not ours */
    check(towa_transaction_start());
    list = TOWA_PNEW(struct list, .head = NULL, .tail = NULL, .count = 0);
    if (!list)
        check(towa_last_error_code());
    check(TOWA_ROOT_SET(struct list, "list", list));
    check(towa_transaction_end());
    return list;
}

/* Prints the list; fails if it is not one. */
static int dump(const struct list *list)
{
    uint64_t seen = 0;
    const struct node *node, *last = NULL;
    for (node = list->head; node; last = node, node = node->next, seen++)
        printf("%" PRId64 " %" PRId64 "\n", node->key, node->value);
    if (seen == list->count && last == list->tail)
        return 0;
    fprintf(stderr, "list: damaged: %" PRIu64 " nodes, expected %" PRIu64 "; tail %s\n", seen, list->count,
            last == list->tail ? "right" : "wrong");
    return 1;
}

struct fill {
    struct list *list;
    int64_t first, step, end;
};

static void *fill(void *arg)
{
    const struct fill *f = arg;
    int64_t i, done = 0;
    check(towa_thread_init());
    for (i = f->first; i < f->end; i += f->step) {
        check(insert(f->list, i, i * i));
        if (f->first == 0 && ++done % 500 == 0) {
            /* Whatever was in the list before the call is durable after it. */
            uint64_t count;
            pthread_mutex_lock(&list_lock);
            count = f->list->count;
            pthread_mutex_unlock(&list_lock);
            check(towa_sync());
            printf("durable %" PRIu64 "\n", count);
            fflush(stdout);
        }
    }
    check(towa_thread_exit());
    return NULL;
}

static int usage(void)
{
    fprintf(stderr, "usage: list POOL insert KEY VALUE | list POOL dump | list POOL fill N\n");
    return 2;
}

int main(int argc, char **argv)
{
    struct list *list;
    towa_options options = TOWA_OPTIONS_INIT;
    int status = 0;
    if (argc < 3)
        return usage();
    options.heap_len = 256u << 20;
    check(towa_init(argv[1], &options));
    check(towa_thread_init());
    list = open_list();
    if (!strcmp(argv[2], "insert") && argc == 5) {
        check(insert(list, strtoll(argv[3], NULL, 10), strtoll(argv[4], NULL, 10)));
    } else if (!strcmp(argv[2], "dump") && argc == 3) {
        status = dump(list);
    } else if (!strcmp(argv[2], "fill") && argc == 4) {
        enum { THREADS = 4 };
        pthread_t threads[THREADS];
        struct fill work[THREADS];
        int i;
        for (i = 0; i < THREADS; i++) {
            work[i] = (struct fill){list, i, THREADS, strtoll(argv[3], NULL, 10)};
            if (pthread_create(&threads[i], NULL, fill, &work[i]) != 0)
                return 1;
        }
        for (i = 0; i < THREADS; i++)
            pthread_join(threads[i], NULL);
    } else {
        status = usage();
    }
    check(towa_finalize()); /* makes the last epoch durable */
    return status;
}
