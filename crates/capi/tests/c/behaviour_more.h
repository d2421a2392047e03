/* The second half of behaviour.c: conflicts, large transactions, containers, the detector. Included there, after what it uses. */

static struct item *contended;

static void *marks_later(void *unused)
{
    (void)unused;
    OK(towa_thread_init());
    OK(towa_transaction_start());
    OK(towa_mark(contended, sizeof *contended));
    pthread_barrier_wait(&barrier);
    pthread_barrier_wait(&barrier);
    EXPECT_ERROR(towa_mark((char *)contended + TOWA_LINE, 1), TOWA_EPOISONED, "64-byte line");
    EXPECT_ERROR(towa_transaction_end(), TOWA_EPOISONED, "64-byte line");
    return NULL;
}

/* Two transactions of different epochs write one line: the older one finds out, and neither commits. */
static void test_conflict(void)
{
    pthread_t other;
    uint64_t before;
    begin();
    OK(towa_set_interval_us(1000));
    OK(towa_transaction_start());
    contended = towa_alloc(8 * TOWA_LINE);
    OK(towa_transaction_end());
    OK(towa_sync());
    pthread_barrier_init(&barrier, NULL, 2);
    OK(towa_transaction_start());
    OK(towa_mark(towa_alloc(64), 64));
    before = towa_tx_epoch(NULL);
    while (towa_epoch() == before)
        sched_yield(); /* the epoch ends; new transactions join the next, beside this one */
    EXPECT(pthread_create(&other, NULL, marks_later, NULL) == 0);
    pthread_barrier_wait(&barrier);
    EXPECT_ERROR(towa_mark(contended, sizeof *contended), TOWA_EPOISONED, "64-byte line");
    EXPECT_ERROR(towa_transaction_end(), TOWA_EPOISONED, "64-byte line");
    pthread_barrier_wait(&barrier);
    pthread_join(other, NULL);
    EXPECT_ERROR(towa_transaction_start(), TOWA_EPOISONED, "64-byte line");
    EXPECT(towa_finalize() == TOWA_EPOISONED);
}

static void *gives_up(void *unused)
{
    (void)unused;
    OK(towa_thread_init());
    OK(towa_transaction_start());
    EXPECT_ERROR(towa_transaction_abort(), TOWA_EPOISONED, "UNDOABLE");
    return NULL;
}

/* Transactions that run while somebody else poisons the pool learn it, and not from the next one's start. */
static void test_poisoned_meanwhile(void)
{
    struct item *p;
    pthread_t other;
    begin();
    p = make_root("main");
    OK(towa_sync());
    OK(towa_transaction_start_undoable());
    OK(TOWA_MARK(p->a));
    p->a = 5;
    EXPECT(pthread_create(&other, NULL, gives_up, NULL) == 0 && pthread_join(other, NULL) == 0);
    EXPECT_ERROR(towa_mark(&p->b, sizeof p->b), TOWA_EPOISONED, "aborted half done");
    EXPECT_ERROR(towa_transaction_end(), TOWA_EPOISONED, "aborted half done");
    EXPECT(p->a == 1); /* a mark failed: rolled back */
    EXPECT_ERROR(towa_transaction_start(), TOWA_EPOISONED, "");
    EXPECT(towa_finalize() == TOWA_EPOISONED);
}

/* ---- large transactions ---- */

static void test_reserving(void)
{
    struct item *p;
    char *block;
    begin();
    p = make_root("main");
    OK(towa_transaction_start());
    EXPECT(!towa_alloc(1u << 20) && towa_last_error_code() == TOWA_ETOOBIG);
    OK(TOWA_MARK(p->a));
    p->a = 3;
    OK(towa_transaction_end());
    OK(towa_tx_begin_reserving(NULL, 0, 1u << 20));
    EXPECT(towa_alloc(1u << 20));
    OK(towa_transaction_end());
    OK(towa_tx_begin_reserving(NULL, TOWA_UNDOABLE, 2u << 20));
    block = towa_alloc(1u << 20);
    EXPECT(block);
    memset(block, 1, 1u << 20);
    OK(TOWA_MARK(p->a));
    p->a = 4;
    OK(towa_transaction_abort());
    EXPECT(p->a == 3);
    EXPECT_ERROR(towa_tx_begin_reserving(NULL, 0, (size_t)1 << 40), TOWA_ETOOBIG, "log");
    OK(towa_finalize());
}

/* ---- containers ---- */

struct seen {
    char text[400];
    int stop_after;
};

static int see(const void *key, size_t key_len, const void *value, size_t value_len, void *arg)
{
    struct seen *s = arg;
    strncat(s->text, key, key_len);
    strcat(s->text, "=");
    strncat(s->text, value, value_len);
    strcat(s->text, " ");
    return --s->stop_after == 0 ? 42 : 0;
}

static void one_map(const char *name, unsigned kind)
{
    towa_map *m = towa_map_open(NULL, name, kind), *again = towa_map_open(NULL, name, kind);
    char value[8] = "xxxxxxx";
    size_t len = 99;
    struct seen s = {"", 0};
    EXPECT(m && again && towa_map_count(m) == 0);
    EXPECT(towa_map_put(m, NULL, "b", 1, "2", 1) == 1 && towa_map_put(m, NULL, "a", 1, "1", 1) == 1);
    EXPECT(towa_map_put(again, NULL, "c", 1, "3", 1) == 1 && towa_map_put(m, NULL, "a", 1, "one two three", 13) == 0);
    EXPECT(towa_map_count(again) == 3);
    EXPECT(towa_map_get(m, "a", 1, value, sizeof value, &len) == 1 && len == 13 && !memcmp(value, "one two ", 8));
    EXPECT(towa_map_get(m, "a", 1, NULL, 0, NULL) == 1);
    EXPECT(towa_map_get(m, "z", 1, value, sizeof value, &len) == 0 && len == 13);
    EXPECT(towa_map_delete(m, NULL, "b", 1) == 1 && towa_map_delete(m, NULL, "b", 1) == 0);
    EXPECT(towa_map_put(m, NULL, NULL, 0, NULL, 0) == 1 && towa_map_get(m, "", 0, value, 1, &len) == 1 && len == 0);
    EXPECT(towa_map_each(m, see, &s) == 0);
    EXPECT(strstr(s.text, "a=one two three ") && strstr(s.text, "c=3 ") && strlen(s.text) == 22);
    s = (struct seen){"", 1};
    EXPECT(towa_map_each(m, see, &s) == 42);
    s = (struct seen){"", 0};
    if (kind == TOWA_MAP_ORDERED) {
        EXPECT(towa_map_put(m, NULL, "b", 1, "2", 1) == 1);
        EXPECT(towa_map_range(m, "a", 1, "c", 1, 0, see, &s) == 0 && !strcmp(s.text, "a=one two three b=2 "));
        s = (struct seen){"", 2};
        EXPECT(towa_map_range(m, NULL, 0, NULL, 0, TOWA_REVERSE, see, &s) == 42 && !strcmp(s.text, "c=3 b=2 "));
        EXPECT_ERROR(towa_map_range(m, NULL, 0, NULL, 0, 8, see, &s), TOWA_EINVAL, "flags");
    } else {
        EXPECT_ERROR(towa_map_range(m, NULL, 0, NULL, 0, 0, see, &s), TOWA_EUSAGE, "order");
    }
    EXPECT_ERROR(towa_map_put(m, NULL, NULL, 1, "", 0), TOWA_EINVAL, "key");
    EXPECT_ERROR(towa_map_put(NULL, NULL, "a", 1, "", 0), TOWA_EINVAL, "map");
    EXPECT_ERROR(towa_map_each(m, NULL, NULL), TOWA_EINVAL, "NULL");
    OK(towa_transaction_start());
    EXPECT_ERROR(towa_map_put(m, NULL, "x", 1, "", 0), TOWA_EUSAGE, "inside a transaction");
    EXPECT_ERROR(towa_map_get(m, "a", 1, NULL, 0, NULL), TOWA_EUSAGE, "inside a transaction");
    EXPECT(towa_map_count(m) == TOWA_EUSAGE && !towa_map_open(NULL, "other", kind));
    EXPECT_ERROR(towa_map_each(m, see, &s), TOWA_EUSAGE, "inside a transaction");
    OK(towa_transaction_end());
    EXPECT_ERROR(towa_finalize(), TOWA_EBUSY, "2 container");
    towa_map_close(m);
    towa_map_close(again);
    towa_map_close(NULL);
}

static void test_containers(void)
{
    towa_map *m;
    towa_queue *q;
    void *item = NULL;
    char value[20];
    size_t len = 0;
    int i;
    begin();
    make_root("main");
    one_map("hash", TOWA_MAP_HASH);
    one_map("ordered", TOWA_MAP_ORDERED);
    EXPECT(!towa_map_open(NULL, "main", TOWA_MAP_HASH) && towa_last_error_code() == TOWA_ETYPE);
    EXPECT(!towa_map_open(NULL, "new", 7) && towa_last_error_code() == TOWA_EINVAL);
    EXPECT(!towa_map_open(NULL, NULL, 0) && towa_last_error_code() == TOWA_EINVAL);
    q = towa_queue_open(NULL, "queue");
    EXPECT(q && towa_queue_pop(q, NULL, &item, &len) == 0);
    for (i = 0; i < 1000; i++)
        OK(towa_queue_push(q, NULL, &i, sizeof i));
    OK(towa_queue_push(q, towa_thread_on(NULL), NULL, 0));
    EXPECT(towa_queue_count(q) == 1001);
    EXPECT_ERROR(towa_queue_pop(q, NULL, NULL, &len), TOWA_EINVAL, "NULL");
    for (i = 0; i < 1000; i++) {
        EXPECT(towa_queue_pop(q, NULL, &item, &len) == 1 && len == sizeof i && !memcmp(item, &i, len));
        free(item);
    }
    towa_queue_close(q);
    reopen("main");
    q = towa_queue_open(NULL, "queue");
    EXPECT(towa_queue_count(q) == 1 && towa_queue_pop(q, NULL, &item, &len) == 1 && len == 0);
    free(item);
    towa_queue_close(q);
    m = towa_map_open(NULL, "ordered", TOWA_MAP_ORDERED);
    EXPECT(towa_map_count(m) == 4 && towa_map_get(m, "c", 1, value, sizeof value, &len) == 1 && len == 1 && value[0] == '3');
    towa_map_close(m);
    OK(towa_finalize());
}

struct sample {
    double at;
    char name[16];
};

static void test_vector(void)
{
    struct sample s = {0, "x"}, got;
    towa_vector *v, *again, *bytes;
    uint64_t i, index = 99;
    char three[3] = "ab", seen[4] = {'_', '_', '_', '_'};
    begin();
    make_root("main");
    v = towa_vector_open(NULL, "v", sizeof s);
    again = towa_vector_open(NULL, "v", sizeof s);
    EXPECT(v && again && towa_vector_count(v) == 0);
    EXPECT(towa_vector_get(v, 0, &got) == 0 && towa_vector_pop(v, NULL, &got) == 0 && towa_vector_set(v, NULL, 0, &s) == 0);
    for (i = 0; i < 10000; i++) {
        s.at = (double)i;
        OK(towa_vector_push(i % 2 ? v : again, NULL, &s, i % 3 ? &index : NULL));
        EXPECT(i % 3 == 0 || index == i);
    }
    EXPECT(towa_vector_count(again) == 10000);
    EXPECT(towa_vector_get(v, 4321, &got) == 1 && got.at == 4321.0 && !strcmp(got.name, "x"));
    EXPECT(towa_vector_get(v, 4321, NULL) == 1 && towa_vector_get(v, 10000, &got) == 0 && towa_vector_get(v, UINT64_MAX, &got) == 0);
    s.at = -1;
    EXPECT(towa_vector_set(v, towa_thread_on(NULL), 4321, &s) == 1 && towa_vector_set(v, NULL, UINT64_MAX, &s) == 0);
    EXPECT(towa_vector_get(again, 4321, &got) == 1 && got.at == -1.0);
    EXPECT(towa_vector_pop(v, NULL, &got) == 1 && got.at == 9999.0 && towa_vector_pop(v, NULL, NULL) == 1);
    EXPECT(towa_vector_count(v) == 9998);
    /* what is refused */
    EXPECT(!towa_vector_open(NULL, "v", 8) && towa_last_error_code() == TOWA_ETYPE);
    EXPECT(!towa_vector_open(NULL, "main", sizeof s) && towa_last_error_code() == TOWA_ETYPE);
    EXPECT(!towa_queue_open(NULL, "v") && towa_last_error_code() == TOWA_ETYPE);
    EXPECT(!towa_vector_open(NULL, "w", 0) && towa_last_error_code() == TOWA_EINVAL);
    EXPECT(!towa_vector_open(NULL, "w", TOWA_VECTOR_ITEM_MAX + 1) && towa_last_error_code() == TOWA_EINVAL);
    EXPECT(!towa_vector_open(NULL, NULL, 8) && towa_last_error_code() == TOWA_EINVAL);
    EXPECT_ERROR(towa_vector_push(v, NULL, NULL, NULL), TOWA_EINVAL, "item");
    EXPECT_ERROR(towa_vector_set(v, NULL, 0, NULL), TOWA_EINVAL, "item");
    EXPECT_ERROR(towa_vector_get(NULL, 0, &got), TOWA_EINVAL, "towa_vector");
    EXPECT(towa_vector_count(NULL) == TOWA_EINVAL);
    OK(towa_transaction_start());
    EXPECT_ERROR(towa_vector_push(v, NULL, &s, NULL), TOWA_EUSAGE, "inside a transaction");
    EXPECT_ERROR(towa_vector_get(v, 0, &got), TOWA_EUSAGE, "inside a transaction");
    EXPECT_ERROR(towa_vector_set(v, NULL, 0, &s), TOWA_EUSAGE, "inside a transaction");
    EXPECT_ERROR(towa_vector_pop(v, NULL, &got), TOWA_EUSAGE, "inside a transaction");
    EXPECT(!towa_vector_open(NULL, "w", 8) && towa_last_error_code() == TOWA_EUSAGE);
    OK(towa_transaction_end());
    bytes = towa_vector_open(NULL, "bytes", sizeof three); /* a size that fills no line; nothing is written beyond it */
    OK(towa_vector_push(bytes, NULL, three, NULL));
    EXPECT(towa_vector_get(bytes, 0, seen) == 1 && !memcmp(seen, "ab\0_", 4));
    EXPECT_ERROR(towa_finalize(), TOWA_EBUSY, "3 container");
    towa_vector_close(v);
    towa_vector_close(again);
    towa_vector_close(bytes);
    reopen("main");
    v = towa_vector_open(NULL, "v", sizeof s);
    EXPECT(towa_vector_count(v) == 9998 && towa_vector_get(v, 9997, &got) == 1 && got.at == 9997.0);
    towa_vector_close(v);
    OK(towa_finalize());
}

static int reports;

static void report(const char *text, const void *address, void *arg)
{
    const struct item *p = arg;
    reports++;
    EXPECT(address == (const void *)&p->b && strstr(text, "written but not marked") && strstr(text, "main"));
}

/* The users' classic bug is found, and a marked write is none. */
static void test_detector(void)
{
    towa_options o = small;
    struct item *p;
    o.flags = TOWA_MANUAL | TOWA_DETECT_FORGOTTEN_MARKS | TOWA_PREFAULT;
    o.medium = TOWA_MEDIUM_RAM; /* its image is compared at every epoch */
    OK(towa_init(path, &o));
    OK(towa_thread_init());
    p = make_root("main");
    OK(towa_checkpoint());
    EXPECT(towa_pool_forgotten_marks(NULL, report, p) == 0);
    OK(towa_transaction_start());
    OK(TOWA_MARK(p->a));
    p->a = 5;
    OK(towa_transaction_end());
    OK(towa_checkpoint());
    EXPECT(towa_pool_forgotten_marks(NULL, report, p) == 0);
    OK(towa_transaction_start());
    EXPECT(towa_alloc(500)); /* so that there is something to take a checkpoint of */
    p->b = 99;
    OK(towa_transaction_end());
    OK(towa_checkpoint());
    EXPECT(towa_pool_forgotten_marks(NULL, report, p) == 1 && reports == 1);
    EXPECT(towa_pool_forgotten_marks(NULL, report, p) == 0 && towa_pool_forgotten_marks(NULL, NULL, NULL) == 0);
    OK(towa_finalize());
}

/* A pool whose image is its working copy, which its flag alone makes: the next program opens it as any other. */
static void test_in_place(void)
{
    towa_options o = small;
    struct item *p;
    o.flags = TOWA_MANUAL | TOWA_IN_PLACE;
    o.medium = TOWA_MEDIUM_RAM;
    OK(towa_init(path, &o));
    OK(towa_thread_init());
    p = make_root("main");
    OK(towa_checkpoint());
    OK(towa_transaction_start());
    OK(TOWA_MARK(p->a));
    p->a = 5;
    OK(towa_transaction_end());
    OK(towa_finalize());
    o.flags = TOWA_DETECT_FORGOTTEN_MARKS;
    EXPECT(towa_init(path, &o) == TOWA_EUSAGE && strstr(towa_last_error(), "its working copy"));
    o.flags = 0;
    OK(towa_init(path, &o));
    p = TOWA_ROOT_GET(struct item, "main");
    EXPECT(p && p->a == 5 && p->b == 2);
    OK(towa_finalize());
}
