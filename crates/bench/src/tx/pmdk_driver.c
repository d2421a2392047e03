/*
 * Runs libpmemobj's example btree_map over the keys that `towa bench tx` wrote, and tells the seconds of each phase as JSON.
 *
 *   driver POOL POOL_BYTES KEYS THREADS
 *
 * KEYS holds 64-bit words: the number of phases; then for each its kind, its number of keys, and the keys. Kinds: 0 insert them,
 * 1 look them up, 2 insert one and look one up in turn. The example's source comes from the Debian package libpmemobj-dev
 * (/usr/share/doc/libpmemobj-dev/examples), included by the path in BTREE_MAP_SOURCE; no part of it is kept here.
 *
 * What must hold: what is timed is calls of btree_map_insert and btree_map_get and nothing else; a value is the words of its own
 * reference, so that no allocation of ours is added to the map's; the map has no lock, so with more than one thread there is
 * one reader-writer lock around it, and none with one; every answer is checked.
 */
#include BTREE_MAP_SOURCE

#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

struct phase {
    uint64_t kind, count;
    const uint64_t *keys;
    uint64_t next, few; /* threads take so many keys at a time, an even number: a pair is never cut */
};

struct user {
    pthread_t thread;
    struct phase *phase;
    double began, ended;
};

static PMEMobjpool *pool;
static TOID(struct btree_map) map;
static int threads;
static pthread_rwlock_t lock = PTHREAD_RWLOCK_INITIALIZER;
static pthread_barrier_t gate;

static void fail(const char *what, const char *which)
{
    fprintf(stderr, "pmdk_btree: %s %s\n", what, which);
    exit(1);
}

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec / 1e9;
}

static void insert(uint64_t key)
{
    PMEMoid value = {1, key};
    if (threads > 1) pthread_rwlock_wrlock(&lock);
    btree_map_insert(pool, map, key, value);
    if (threads > 1) pthread_rwlock_unlock(&lock);
}

static void look_up(uint64_t key)
{
    if (threads > 1) pthread_rwlock_rdlock(&lock);
    PMEMoid value = btree_map_get(pool, map, key);
    if (threads > 1) pthread_rwlock_unlock(&lock);
    if (value.off != key) fail("a key is lost", "");
}

static void *run(void *arg)
{
    struct user *me = arg;
    struct phase *phase = me->phase;
    const uint64_t *keys = phase->keys;
    pthread_barrier_wait(&gate);
    me->began = now();
    for (;;) {
        uint64_t from = __atomic_fetch_add(&phase->next, phase->few, __ATOMIC_RELAXED);
        if (from >= phase->count) break;
        uint64_t to = from + phase->few < phase->count ? from + phase->few : phase->count;
        switch (phase->kind) {
        case 0:
            for (uint64_t i = from; i < to; i++) insert(keys[i]);
            break;
        case 1:
            for (uint64_t i = from; i < to; i++) look_up(keys[i]);
            break;
        default:
            for (uint64_t i = from; i + 1 < to; i += 2) {
                insert(keys[i]);
                look_up(keys[i + 1]);
            }
        }
    }
    me->ended = now();
    return NULL;
}

static double measure(struct phase *phase)
{
    struct user *users = calloc(threads, sizeof(*users));
    double began = 0, ended = 0;
    pthread_barrier_init(&gate, NULL, threads);
    for (int t = 0; t < threads; t++) {
        users[t].phase = phase;
        if (pthread_create(&users[t].thread, NULL, run, &users[t])) fail("cannot start", "a thread");
    }
    for (int t = 0; t < threads; t++) {
        pthread_join(users[t].thread, NULL);
        if (t == 0 || users[t].began < began) began = users[t].began;
        if (t == 0 || users[t].ended > ended) ended = users[t].ended;
    }
    free(users);
    return ended - began;
}

int main(int argc, char **argv)
{
    if (argc != 5) fail("usage: driver", "POOL POOL_BYTES KEYS THREADS");
    threads = atoi(argv[4]);
    if (threads < 1) fail("no number of threads:", argv[4]);
    int fd = open(argv[3], O_RDONLY);
    struct stat status;
    if (fd < 0 || fstat(fd, &status)) fail("cannot open", argv[3]);
    const uint64_t *words = mmap(NULL, status.st_size, PROT_READ, MAP_SHARED | MAP_POPULATE, fd, 0);
    if (words == MAP_FAILED) fail("cannot map", argv[3]);
    const uint64_t *end = words + status.st_size / 8;

    pool = pmemobj_create(argv[1], "towa-bench", strtoull(argv[2], NULL, 10), 0600);
    if (!pool) fail("cannot create the pool:", pmemobj_errormsg());
    PMEMoid root = pmemobj_root(pool, sizeof(map));
    if (OID_IS_NULL(root)) fail("no root:", pmemobj_errormsg());
    TOID(struct btree_map) *place = pmemobj_direct(root);
    if (btree_map_create(pool, place, NULL)) fail("cannot make the map:", pmemobj_errormsg());
    map = *place;

    uint64_t phases = *words++;
    printf("[");
    for (uint64_t n = 0; n < phases; n++) {
        if (words + 2 > end || words + 2 + words[1] > end) fail("cut short:", argv[3]);
        struct phase phase = {words[0], words[1], words + 2, 0, 512};
        printf("%s%.9f", n ? "," : "", measure(&phase));
        words += 2 + phase.count;
    }
    printf("]\n");
    pmemobj_close(pool);
    return 0;
}
