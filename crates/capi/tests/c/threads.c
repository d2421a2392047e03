/* Four threads count in one pool, a lock around each transaction: `threads POOL` prints how far the count is. */
#include <towa.h>

#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>

#define THREADS 4
#define STEPS 1000

struct counter {
    uint64_t count;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct counter *counter;

static void *count(void *unused)
{
    (void)unused;
    if (towa_thread_init())
        return NULL;
    for (int i = 0; i < STEPS; i++) {
        pthread_mutex_lock(&lock);
        towa_transaction_start();
        TOWA_MARK(counter->count);
        counter->count++;
        towa_transaction_end();
        pthread_mutex_unlock(&lock);
    }
    return NULL;
}

int main(int argc, char **argv)
{
    towa_options options = TOWA_OPTIONS_INIT;
    options.heap_len = 64 << 20;
    if (argc != 2 || towa_init(argv[1], &options)) {
        fprintf(stderr, "%s\n", argc == 2 ? towa_last_error() : "usage: threads POOL");
        return 1;
    }
    towa_thread_init();
    counter = TOWA_ROOT_GET(struct counter, "counter");
    if (!counter) {
        towa_transaction_start();
        counter = TOWA_PNEW(struct counter, .count = 0);
        TOWA_ROOT_SET(struct counter, "counter", counter);
        towa_transaction_end();
    }
    pthread_t threads[THREADS];
    for (int i = 0; i < THREADS; i++)
        pthread_create(&threads[i], NULL, count, NULL);
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    printf("%" PRIu64 "\n", counter->count);
    return towa_finalize() ? 1 : 0;
}
