/* The third part of behaviour.c: what a careless or hostile program tries. Included there, after what it uses. */
#include <errno.h>
#include <sys/wait.h>
#include <unistd.h>

/* ---- handles that are no more, or are something else ---- */

static void test_handles(void)
{
    towa_pool *pool, *gone;
    towa_map *m;
    towa_queue *q;
    towa_vector *v;
    towa_thread *t;
    void *item = NULL;
    size_t len = 0;
    int i;
    pool = towa_pool_open(path, &small);
    t = towa_thread_attach(pool);
    m = towa_map_open(pool, "m", TOWA_MAP_HASH);
    q = towa_queue_open(pool, "q");
    v = towa_vector_open(pool, "v", 8);
    EXPECT(pool && t && m && q && v);
    /* one for the other */
    EXPECT(towa_map_count((towa_map *)(void *)q) == TOWA_EUSAGE && strstr(towa_last_error(), "towa_map"));
    EXPECT_ERROR(towa_queue_push((towa_queue *)(void *)v, t, "x", 1), TOWA_EUSAGE, "towa_queue");
    EXPECT_ERROR(towa_vector_get((towa_vector *)(void *)pool, 0, NULL), TOWA_EUSAGE, "towa_vector");
    EXPECT_ERROR(towa_pool_sync((towa_pool *)(void *)m, NULL), TOWA_EUSAGE, "towa_pool");
    EXPECT_ERROR(towa_pool_close((towa_pool *)(void *)t), TOWA_EUSAGE, "towa_pool");
    EXPECT(!towa_thread_attach((towa_pool *)(void *)q) && !towa_map_open((towa_pool *)(void *)v, "x", 0));
    EXPECT_ERROR(towa_tx_begin((towa_thread *)(void *)m, 0), TOWA_EUSAGE, "towa_thread");
    EXPECT_ERROR(towa_map_put((towa_map *)(void *)((char *)m + 1), t, "a", 1, "", 0), TOWA_EUSAGE, "towa_map");
    EXPECT_ERROR(towa_map_put(m, (towa_thread *)(void *)q, "a", 1, "", 0), TOWA_EUSAGE, "towa_thread");
    towa_map_close((towa_map *)(void *)v); /* closes nothing */
    EXPECT(towa_vector_count(v) == 0);
    /* closed, and closed again */
    towa_map_close(m), towa_map_close(m);
    EXPECT(towa_last_error_code() == TOWA_EUSAGE && strstr(towa_last_error(), "closed"));
    towa_queue_close(q), towa_queue_close(q), towa_vector_close(v), towa_vector_close(v), towa_vector_close(NULL);
    EXPECT_ERROR(towa_map_put(m, t, "a", 1, "", 0), TOWA_EUSAGE, "closed");
    EXPECT_ERROR(towa_map_each(m, see, NULL), TOWA_EUSAGE, "closed");
    EXPECT_ERROR(towa_queue_pop(q, t, &item, &len), TOWA_EUSAGE, "closed");
    EXPECT_ERROR(towa_vector_pop(v, t, NULL), TOWA_EUSAGE, "closed");
    for (i = 0; i < 30; i++) { /* a stale handle does not become somebody else's soon */
        towa_map *again = towa_map_open(pool, "m", TOWA_MAP_HASH);
        EXPECT(again && again != m && towa_map_count(m) == TOWA_EUSAGE);
        towa_map_close(again);
    }
    OK(towa_thread_detach(t));
    EXPECT_ERROR(towa_thread_detach(t), TOWA_EUSAGE, "detached");
    OK(towa_pool_close(pool));
    EXPECT_ERROR(towa_pool_close(pool), TOWA_EUSAGE, "closed");
    EXPECT_ERROR(towa_pool_sync(pool, NULL), TOWA_EUSAGE, "closed");
    EXPECT(towa_pool_epoch(pool) == 0 && !towa_thread_attach(pool) && !towa_thread_on(pool) && !towa_map_open(pool, "m", 0));
    gone = pool;
    pool = towa_pool_open(path, &small);
    EXPECT(pool && pool != gone && towa_pool_epoch(gone) == 0 && towa_pool_epoch(pool) > 0);
    OK(towa_pool_close(pool));
}

/* ---- sizes and addresses that make no sense ---- */

static void test_sizes(void)
{
    static const size_t huge[] = {SIZE_MAX, SIZE_MAX - 1, SIZE_MAX - 63, SIZE_MAX / 2 + 1, SIZE_MAX / 2, (size_t)1 << 47, (size_t)1 << 32};
    struct item *p;
    towa_map *m;
    towa_queue *q;
    char raw[64] = {0};
    void *base, *object;
    uint64_t heap_len, *odd = (uint64_t *)(void *)(raw + 1);
    size_t i;
    begin();
    p = make_root("main");
    m = towa_map_open(NULL, "m", TOWA_MAP_ORDERED);
    q = towa_queue_open(NULL, "q");
    EXPECT(m && q);
    OK(towa_pool_heap(NULL, &base, &heap_len));
    for (i = 0; i < sizeof huge / sizeof *huge; i++) {
        size_t n = huge[i];
        EXPECT_ERROR(towa_map_put(m, NULL, "a", n, "", 0), TOWA_EINVAL, "too long");
        EXPECT_ERROR(towa_map_put(m, NULL, "a", 1, "a", n), TOWA_EINVAL, "too long");
        EXPECT_ERROR(towa_map_get(m, "a", n, NULL, 0, NULL), TOWA_EINVAL, "too long");
        EXPECT_ERROR(towa_map_delete(m, NULL, "a", n), TOWA_EINVAL, "too long");
        EXPECT_ERROR(towa_map_range(m, "a", n, NULL, 0, 0, see, NULL), TOWA_EINVAL, "too long");
        EXPECT_ERROR(towa_queue_push(q, NULL, "a", n), TOWA_EINVAL, "too long");
        EXPECT(!towa_vector_open(NULL, "v", n) && towa_last_error_code() == TOWA_EINVAL);
        OK(towa_transaction_start_undoable());
        EXPECT(!towa_alloc(n) && towa_last_error_code() == TOWA_ENOSPC);
        EXPECT(!towa_tx_alloc_init(NULL, n, p) && towa_last_error_code() == TOWA_ENOSPC);
        EXPECT_ERROR(towa_root_set("r", 1, n, p), TOWA_ERANGE, "heap");
        EXPECT_ERROR(towa_mark(raw, n), n > (uintptr_t)base - (uintptr_t)raw ? towa_last_error_code() : TOWA_ERANGE, "");
        OK(towa_transaction_abort());
        OK(towa_transaction_start_undoable());
        OK(TOWA_MARK(p->a));
        p->a = 77;
        EXPECT_ERROR(towa_mark(p, n), TOWA_ERANGE, "heap"); /* begins inside: the transaction cannot commit */
        EXPECT_ERROR(towa_transaction_end(), TOWA_EUSAGE, "aborted");
        EXPECT(p->a == 1);
        if (n > (size_t)1 << 46) {
            EXPECT_ERROR(towa_tx_begin_reserving(NULL, 0, n), TOWA_ETOOBIG, "");
        }
    }
    /* blocks that are none */
    OK(towa_transaction_start());
    {
        void *wild[] = {base, (char *)base + 1, (char *)base + 4096, (char *)base + (heap_len - 16), (char *)base + (heap_len - 1), (char *)p + 1};
        for (i = 0; i < sizeof wild / sizeof *wild; i++) {
            EXPECT(towa_free(wild[i]) == TOWA_EUSAGE);
            EXPECT(towa_pool_block_size(NULL, wild[i]) == 0);
        }
    }
    EXPECT_ERROR(towa_free((char *)base + heap_len), TOWA_ERANGE, "heap");
    EXPECT_ERROR(towa_free((char *)base - 1), TOWA_ERANGE, "heap");
    EXPECT_ERROR(towa_root_set("", 1, 8, p), TOWA_EINVAL, "1 to 40");
    OK(towa_transaction_end());
    /* results to odd addresses */
    OK(towa_pool_sync(NULL, odd));
    OK(towa_pool_root(NULL, "main", towa_type_tag("struct item"), sizeof *p, (void **)(void *)(raw + 9)));
    memcpy(&object, raw + 9, sizeof object);
    EXPECT(object == p);
    OK(towa_pool_heap(NULL, (void **)(void *)(raw + 17), odd));
    OK(towa_pool_heap(NULL, NULL, NULL));
    EXPECT(!towa_map_open(NULL, "", 0) && towa_last_error_code() == TOWA_EINVAL);
    EXPECT(!towa_queue_open(NULL, "12345678901234567890123456789012345678901") && towa_last_error_code() == TOWA_EINVAL);
    OK(towa_set_interval_us(UINT64_MAX / 1000 + 2)); /* for ever, not a wrapped-around moment */
    EXPECT(towa_interval_us() > (uint64_t)1 << 50);
    towa_map_close(m);
    towa_queue_close(q);
    OK(towa_finalize());
}

static void test_hostile_options(void)
{
    static const uint64_t lengths[] = {1, 4095, 1u << 12, UINT64_MAX, UINT64_MAX - 4095, (uint64_t)1 << 63, ((uint64_t)1 << 47) + 1};
    static const uint64_t bases[] = {1, 4095, 4096, UINT64_MAX, UINT64_MAX - 4095, (uint64_t)1 << 63, (uint64_t)1 << 47, UINT64_C(0x7ffffffff000)};
    char odd[sizeof(towa_options) + 1];
    towa_options o;
    towa_pool *pool;
    size_t i;
    for (i = 0; i < 2 * sizeof lengths / sizeof *lengths; i++) {
        char own[4096];
        snprintf(own, sizeof own, "%s-%zu", path, i);
        o = small, o.open = TOWA_CREATE_NEW;
        *(i % 2 ? &o.log_len : &o.heap_len) = lengths[i / 2];
        pool = towa_pool_open(own, &o);
        if (pool)
            OK(towa_pool_close(pool)); /* rounded up, if anything */
        EXPECT(pool ? lengths[i / 2] <= 1u << 12 : towa_last_error_code() == TOWA_EINVAL);
    }
    for (i = 0; i < sizeof bases / sizeof *bases; i++) {
        char own[4096];
        snprintf(own, sizeof own, "%s-at-%zu", path, i);
        o = small, o.base = bases[i], o.open = TOWA_CREATE_NEW;
        EXPECT(!towa_pool_open(own, &o) && towa_last_error_code() != TOWA_EINTERNAL);
    }
    EXPECT(!towa_pool_open("", &small) && towa_last_error_code() != TOWA_EINTERNAL);
    memcpy(odd + 1, &small, sizeof small); /* not aligned */
    pool = towa_pool_open(path, (const towa_options *)(const void *)(odd + 1));
    EXPECT(pool);
    OK(towa_pool_close(pool));
}

/* ---- visits ---- */

static towa_map *visited;
static int visits;

static int closes_it(const void *key, size_t key_len, const void *value, size_t value_len, void *arg)
{
    (void)key, (void)key_len, (void)value, (void)value_len, (void)arg;
    visits++;
    towa_map_close(visited);
    EXPECT_ERROR(towa_finalize(), TOWA_EBUSY, "container"); /* the visit goes on */
    return 0;
}

static int leaves_one_open(const void *key, size_t key_len, const void *value, size_t value_len, void *arg)
{
    (void)key, (void)key_len, (void)value, (void)value_len, (void)arg;
    visits++;
    OK(towa_transaction_start());
    return 0;
}

static void test_visits(void)
{
    unsigned kind;
    char key;
    begin();
    for (kind = TOWA_MAP_HASH; kind <= TOWA_MAP_ORDERED; kind++) {
        visited = towa_map_open(NULL, kind ? "ordered" : "hash", kind);
        for (key = 'a'; key <= 'z'; key++)
            EXPECT(towa_map_put(visited, NULL, &key, 1, "v", 1) == 1);
        visits = 0;
        EXPECT_ERROR(towa_map_each(visited, leaves_one_open, NULL), TOWA_EUSAGE, "inside a transaction"); /* not OK after half of them */
        EXPECT(visits == 1);
        OK(towa_transaction_end());
        visits = 0;
        OK(towa_map_each(visited, closes_it, NULL));
        EXPECT(visits == 26 && towa_map_count(visited) == TOWA_EUSAGE);
    }
    OK(towa_finalize());
}

/* ---- a child of fork() ---- */

static void test_fork(void)
{
    struct item *p;
    towa_map *m;
    pid_t child;
    int status = -1;
    begin();
    p = make_root("main");
    m = towa_map_open(NULL, "m", TOWA_MAP_HASH);
    EXPECT(towa_map_put(m, NULL, "a", 1, "1", 1) == 1);
    child = fork();
    EXPECT(child >= 0);
    if (child == 0) {
        towa_thread *mine = towa_thread_on(NULL);
        EXPECT(!mine && !towa_pool_default());
        EXPECT_ERROR(towa_transaction_start(), TOWA_EUSAGE, "fork");
        EXPECT_ERROR(towa_sync(), TOWA_EUSAGE, "fork");
        EXPECT(towa_map_count(m) == TOWA_EUSAGE);
        towa_map_close(m);
        EXPECT_ERROR(towa_thread_exit(), TOWA_EUSAGE, "fork");
        EXPECT_ERROR(towa_finalize(), TOWA_EUSAGE, "fork"); /* would write to the parent's files */
        _exit(failures != 0);
    }
    EXPECT(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
    EXPECT(towa_map_count(m) == 1 && towa_thread_on(NULL) && towa_pool_default());
    OK(towa_transaction_start());
    OK(TOWA_MARK(p->a));
    p->a = 8;
    OK(towa_transaction_end());
    towa_map_close(m);
    p = reopen("main");
    EXPECT(p && p->a == 8);
    OK(towa_finalize());
}

/* ---- no memory ---- */

#if defined(__GLIBC__) && !defined(__SANITIZE_ADDRESS__)
extern void *__libc_malloc(size_t size);
static size_t fails_from = SIZE_MAX; /* bytes */
static int fails_after;              /* as many such calls */

/* In place of the C library's, for this program and the libraries it uses. */
void *malloc(size_t size)
{
    if (size >= fails_from && fails_after-- <= 0) {
        errno = ENOMEM;
        return NULL;
    }
    return __libc_malloc(size);
}

/* An item that there is no memory to copy stays in the queue. */
static void test_no_memory(void)
{
    enum { LEN = 200000 };
    static char large[LEN];
    towa_queue *q;
    void *item = NULL;
    size_t len = 0;
    int spared;
    begin();
    q = towa_queue_open(NULL, "q");
    memset(large, 7, sizeof large);
    OK(towa_queue_push(q, NULL, large, sizeof large));
    for (spared = 0; spared < 2; spared++) {
        fails_from = LEN, fails_after = spared;
        EXPECT_ERROR(towa_queue_pop(q, NULL, &item, &len), TOWA_ENOSPC, "stays in the queue");
        fails_from = SIZE_MAX;
        EXPECT(!item && !len && towa_queue_count(q) == 1);
    }
    EXPECT(towa_queue_pop(q, NULL, &item, &len) == 1 && len == LEN && !memcmp(item, large, LEN) && towa_queue_count(q) == 0);
    free(item);
    towa_queue_close(q);
    OK(towa_finalize());
}
#else
static void test_no_memory(void)
{
    puts("SKIP: malloc cannot be replaced here (a sanitizer has it, or this is not glibc)");
}
#endif

/* Several threads take items, by handles of their own, and put them back: each gets one, whole, and none is lost. */
enum { POPPERS = 4, ITEMS = 8, ROUNDS = 1500, LEAST = 1 << 17 /* so large that a copy takes a while */ };

static void *pops(void *unused)
{
    towa_queue *q;
    void *item;
    size_t len;
    int i;
    (void)unused;
    OK(towa_thread_init());
    q = towa_queue_open(NULL, "q");
    pthread_barrier_wait(&barrier);
    for (i = 0; i < ROUNDS; i++) {
        int n = towa_queue_pop(q, NULL, &item, &len);
        EXPECT(n == 1); /* more items than threads */
        if (n != 1)
            break;
        memcpy(&n, item, sizeof n);
        EXPECT(len == LEAST + (size_t)n);
        OK(towa_queue_push(q, NULL, item, len));
        free(item);
    }
    towa_queue_close(q);
    OK(towa_thread_exit());
    return NULL;
}

static void test_pops(void)
{
    static char large[LEAST + ITEMS];
    pthread_t threads[POPPERS];
    towa_queue *q;
    void *item = NULL;
    size_t len = 0;
    int i, n, sum = 0;
    begin();
    q = towa_queue_open(NULL, "q");
    pthread_barrier_init(&barrier, NULL, POPPERS);
    for (i = 0; i < ITEMS; i++) {
        memcpy(large, &i, sizeof i);
        OK(towa_queue_push(q, NULL, large, LEAST + (size_t)i));
    }
    for (i = 0; i < POPPERS; i++)
        EXPECT(pthread_create(&threads[i], NULL, pops, NULL) == 0);
    for (i = 0; i < POPPERS; i++)
        pthread_join(threads[i], NULL);
    EXPECT(towa_queue_count(q) == ITEMS);
    while (towa_queue_pop(q, NULL, &item, &len) == 1) {
        memcpy(&n, item, sizeof n);
        sum += n;
        free(item);
    }
    EXPECT(sum == ITEMS * (ITEMS - 1) / 2);
    towa_queue_close(q);
    OK(towa_finalize());
}
