/* The part of tx_behaviour.c about trees. Included there. */

static towa_tree *tree;
static towa_tree_session *session;

static void open_session(void)
{
    EXPECT(tree);
    session = towa_tree_session_open(tree);
    EXPECT(session);
}

static void close_tree(void)
{
    OK(towa_tree_session_close(session));
    OK(towa_tree_check(tree));
    OK(towa_tree_close(tree));
}

struct seen {
    uint64_t count, sum, last, stop_at;
    int backward, in_order;
};

static int see_number(const void *key, size_t key_len, uint64_t value, void *arg)
{
    struct seen *seen = arg;
    uint64_t number;
    EXPECT(key_len == 8);
    memcpy(&number, key, 8);
    EXPECT(value == number * 3);
    if (seen->count && (seen->backward ? number >= seen->last : number <= seen->last))
        seen->in_order = 0;
    seen->count++;
    seen->sum += number;
    seen->last = number;
    return seen->stop_at == number ? 12 : 0;
}

/* Scans, and sees whether there were so many keys with this sum. */
static int scan_gives(const uint64_t *from, const uint64_t *to, unsigned flags, uint64_t count, uint64_t sum)
{
    struct seen seen = {0, 0, 0, UINT64_MAX, (flags & TOWA_REVERSE) != 0, 1};
    int rc = towa_tree_scan(session, from, from ? 8 : 0, to, to ? 8 : 0, flags, see_number, &seen);
    return rc == TOWA_OK && seen.in_order && seen.count == count && seen.sum == sum;
}

/* Numbers 0..n in a tree that is open and empty; ends with the odd ones. */
static void numbers(uint64_t n)
{
    uint64_t i, value = 0, from = 10, to = 20;
    struct seen stops = {0, 0, 0, 15, 0, 1};
    for (i = 0; i < n; i++) {
        uint64_t key = i * 7919 % n;
        EXPECT(towa_tree_insert(session, &key, 8, key) == 1);
        EXPECT(towa_tree_insert(session, &key, 8, 0) == 0);
        EXPECT(towa_tree_upsert(session, &key, 8, key * 3, &value) == 0 && value == key);
    }
    EXPECT(towa_tree_count(tree) == (int64_t)n);
    EXPECT(towa_tree_get(session, &from, 8, &value) == 1 && value == 30);
    EXPECT(scan_gives(NULL, NULL, 0, n, n * (n - 1) / 2));
    EXPECT(scan_gives(NULL, NULL, TOWA_REVERSE, n, n * (n - 1) / 2));
    EXPECT(scan_gives(&from, &to, 0, 10, 145));
    EXPECT(scan_gives(&from, &to, TOWA_TREE_AFTER_FROM | TOWA_REVERSE, 9, 135));
    EXPECT(scan_gives(&from, &to, TOWA_TREE_WITH_TO, 11, 165));
    EXPECT(towa_tree_scan(session, &from, 8, NULL, 0, 0, see_number, &stops) == 12 && stops.count == 6);
    for (i = 0; i < n; i += 2)
        EXPECT(towa_tree_remove(session, &i, 8, &value) == 1 && value == i * 3);
    i = 0;
    EXPECT(towa_tree_remove(session, &i, 8, NULL) == 0 && towa_tree_get(session, &i, 8, &value) == 0);
    EXPECT(towa_tree_upsert(session, &i, 8, 0, &value) == 1 && towa_tree_remove(session, &i, 8, NULL) == 1);
}

static void test_tree_of_numbers(void)
{
    begin();
    tree = towa_tree_open(pool, "numbers", TOWA_TREE_U64);
    open_session();
    numbers(1009);
    close_tree();
    end();
    begin();
    tree = towa_tree_open(pool, "numbers", TOWA_TREE_U64);
    open_session();
    EXPECT(towa_tree_count(tree) == 504 && scan_gives(NULL, NULL, 0, 504, 504 * 504));
    close_tree();
    end();
}

static int see_text(const void *key, size_t key_len, uint64_t value, void *arg)
{
    char *all = arg;
    (void)value;
    strncat(all, key, key_len);
    return 0;
}

static void texts(void)
{
    char all[64] = "", back[64] = "", long_key[TOWA_TREE_KEY_MAX + 1];
    uint64_t value = 0;
    memset(long_key, 'x', sizeof long_key);
    EXPECT(towa_tree_insert(session, "pear", 4, 1) == 1);
    EXPECT(towa_tree_insert(session, "apple", 5, 2) == 1);
    EXPECT(towa_tree_insert(session, "peach", 5, 3) == 1);
    EXPECT(towa_tree_insert(session, NULL, 0, 4) == 1);
    EXPECT(towa_tree_get(session, "", 0, &value) == 1 && value == 4);
    EXPECT(towa_tree_scan(session, "b", 1, NULL, 0, 0, see_text, all) == TOWA_OK && strcmp(all, "peachpear") == 0);
    EXPECT(towa_tree_scan(session, NULL, 0, "pear", 4, TOWA_REVERSE, see_text, back) == TOWA_OK && strcmp(back, "peachapple") == 0);
    EXPECT_ERROR(towa_tree_insert(session, long_key, sizeof long_key, 5), TOWA_EINVAL, "1025 bytes");
    EXPECT(towa_tree_insert(session, long_key, TOWA_TREE_KEY_MAX, 5) == 1);
    EXPECT(towa_tree_remove(session, long_key, TOWA_TREE_KEY_MAX, &value) == 1 && value == 5);
    EXPECT(towa_tree_count(tree) == 4);
}

static void test_tree_of_texts(void)
{
    begin();
    tree = towa_tree_open(pool, "texts", TOWA_TREE_BYTES);
    open_session();
    texts();
    close_tree();
    EXPECT_NULL(towa_tree_open(pool, "texts", TOWA_TREE_U64), TOWA_ETYPE, "texts");
    EXPECT_NULL(towa_tree_open(pool, "cells", TOWA_TREE_U64), TOWA_ETYPE, "no B+-tree");
    end();
}

enum { LOADED = 5000 };

/* Loads an empty tree of numbers, and sees that what cannot be loaded is refused. `is_alone`: an FPTree, which stays empty then. */
static void load_numbers(int is_alone)
{
    static uint64_t numbers[LOADED], values[LOADED];
    static const void *keys[LOADED];
    static size_t lens[LOADED];
    uint64_t i, value;
    for (i = 0; i < LOADED; i++) {
        numbers[i] = i;
        values[i] = i * 3;
        keys[i] = &numbers[i];
        lens[i] = 8;
    }
    EXPECT(towa_tree_bulk_load(tree, NULL, NULL, NULL, 0) == 0);
    EXPECT_ERROR((int)towa_tree_bulk_load(NULL, keys, lens, values, LOADED), TOWA_EINVAL, "NULL");
    EXPECT_ERROR((int)towa_tree_bulk_load(tree, NULL, lens, values, LOADED), TOWA_EINVAL, "no keys");
    EXPECT_ERROR((int)towa_tree_bulk_load(tree, keys, lens, NULL, LOADED), TOWA_EINVAL, "no values");
    lens[70] = 7;
    EXPECT_ERROR((int)towa_tree_bulk_load(tree, keys, lens, values, LOADED), TOWA_EINVAL, "entry 70");
    lens[70] = 8;
    keys[71] = NULL;
    EXPECT_ERROR((int)towa_tree_bulk_load(tree, keys, lens, values, LOADED), TOWA_EINVAL, "entry 71");
    EXPECT(towa_tree_count(tree) == 0);
    keys[71] = &numbers[70];
    if (is_alone) {
        EXPECT_ERROR((int)towa_tree_bulk_load(tree, keys, lens, values, LOADED), TOWA_EUSAGE, "ascend");
        EXPECT(towa_tree_count(tree) == 0);
    }
    keys[71] = &numbers[71];
    session = towa_tree_session_open(tree);
    EXPECT_ERROR((int)towa_tree_bulk_load(tree, keys, lens, values, LOADED), TOWA_EBUSY, "sessions are open");
    OK(towa_tree_session_close(session));
    EXPECT(towa_tree_bulk_load(tree, keys, is_alone ? NULL : lens, values, LOADED) == LOADED);
    EXPECT_ERROR((int)towa_tree_bulk_load(tree, keys, lens, values, LOADED), TOWA_EUSAGE, "empty");
    open_session();
    EXPECT(scan_gives(NULL, NULL, 0, LOADED, (uint64_t)LOADED * (LOADED - 1) / 2));
    i = LOADED;
    EXPECT(towa_tree_insert(session, &i, 8, i * 3) == 1 && towa_tree_get(session, &i, 8, &value) == 1 && value == i * 3);
    close_tree();
}

static void test_loading(void)
{
    const void *keys[3] = {"", "one", "two"};
    size_t lens[3] = {0, 3, 3};
    uint64_t values[3] = {4, 5, 6}, value = 0;
    begin();
    tree = towa_tree_open(pool, "numbers", TOWA_TREE_U64);
    EXPECT(tree);
    load_numbers(0);
    tree = towa_tree_open(pool, "texts", TOWA_TREE_BYTES);
    EXPECT(tree);
    EXPECT_ERROR((int)towa_tree_bulk_load(tree, keys, NULL, values, 3), TOWA_EINVAL, "no lengths");
    EXPECT(towa_tree_bulk_load(tree, keys, lens, values, 3) == 3);
    open_session();
    EXPECT(towa_tree_get(session, "", 0, &value) == 1 && value == 4);
    EXPECT(towa_tree_get(session, "two", 3, &value) == 1 && value == 6);
    close_tree();
    tree = towa_tree_open(pool, "unsorted", TOWA_TREE_BYTES);
    keys[2] = "apple";
    lens[2] = 5;
    EXPECT_ERROR((int)towa_tree_bulk_load(tree, keys, lens, values, 3), TOWA_EUSAGE, "sort them");
    OK(towa_tree_close(tree));
    end();
}

static void test_loading_fptree(void)
{
    tree = towa_tree_open_fp(path, NULL, TOWA_TREE_U64);
    EXPECT(tree);
    load_numbers(1);
}

static void test_fptree(void)
{
    towa_tree_options options = TOWA_TREE_OPTIONS_INIT;
    options.len = 16u << 20;
    options.open = TOWA_OPEN_EXISTING;
    EXPECT_NULL(towa_tree_open_fp(path, &options, TOWA_TREE_U64), TOWA_ENOENT, "");
    options.open = TOWA_OPEN_OR_CREATE;
    tree = towa_tree_open_fp(path, &options, TOWA_TREE_U64);
    open_session();
    numbers(2003);
    close_tree();
    EXPECT_NULL(towa_tree_open_fp(path, &options, TOWA_TREE_BYTES), TOWA_ETYPE, "");
    options.open = TOWA_CREATE_NEW;
    EXPECT_NULL(towa_tree_open_fp(path, &options, TOWA_TREE_U64), TOWA_EEXIST, "");
    tree = towa_tree_open_fp(path, NULL, TOWA_TREE_U64);
    open_session();
    EXPECT(towa_tree_count(tree) == 1001);
    EXPECT_NULL(towa_tree_open_fp(path, NULL, TOWA_TREE_U64), TOWA_EBUSY, "");
    close_tree();
    options.medium = 7;
    EXPECT_NULL(towa_tree_open_fp(path, &options, TOWA_TREE_U64), TOWA_EINVAL, "medium");
    EXPECT_NULL(towa_tree_open_fp(NULL, NULL, TOWA_TREE_U64), TOWA_EINVAL, "no path");
    path = strcat(strcpy(malloc(strlen(path) + 7), path), "-texts");
    options.medium = 0;
    options.open = TOWA_CREATE_NEW;
    options.len = 16u << 10; /* less than one key takes */
    EXPECT_NULL(towa_tree_open_fp(path, &options, TOWA_TREE_BYTES), TOWA_EINVAL, "");
    EXPECT(access(path, F_OK) != 0);
    options.len = 16u << 20;
    tree = towa_tree_open_fp(path, &options, TOWA_TREE_BYTES);
    open_session();
    texts();
    close_tree();
    free((char *)path);
}

static void *inserts(void *arg)
{
    towa_tree_session *mine = towa_tree_session_open(tree);
    uint64_t i, first = *(uint64_t *)arg;
    EXPECT(mine);
    for (i = 0; i < 2000; i++) {
        uint64_t key = first + i * THREADS, value;
        EXPECT(towa_tree_insert(mine, &key, 8, key * 3) == 1);
        if (i % 3 == 0)
            EXPECT(towa_tree_remove(mine, &key, 8, &value) == 1 && value == key * 3);
    }
    OK(towa_tree_session_close(mine));
    return NULL;
}

static void insert_together(void)
{
    pthread_t all[THREADS];
    uint64_t first[THREADS];
    int i;
    for (i = 0; i < THREADS; i++) {
        first[i] = (uint64_t)i;
        EXPECT(pthread_create(&all[i], NULL, inserts, &first[i]) == 0);
    }
    for (i = 0; i < THREADS; i++)
        pthread_join(all[i], NULL);
    EXPECT(towa_tree_count(tree) == THREADS * (2000 - 667));
}

static void test_tree_threads(void)
{
    towa_tree_options options = TOWA_TREE_OPTIONS_INIT;
    begin();
    tree = towa_tree_open(pool, "numbers", TOWA_TREE_U64);
    open_session();
    insert_together();
    close_tree();
    end();
    path = strcat(strcpy(malloc(strlen(path) + 4), path), "-fp");
    options.len = 16u << 20;
    tree = towa_tree_open_fp(path, &options, TOWA_TREE_U64);
    open_session();
    insert_together();
    close_tree();
    free((char *)path);
}

static int use_inside(const void *key, size_t key_len, uint64_t value, void *arg)
{
    (void)arg;
    EXPECT_ERROR(towa_tree_get(session, key, key_len, &value), TOWA_EUSAGE, "in use");
    EXPECT_ERROR(towa_tree_session_close(session), TOWA_EUSAGE, "in use");
    return TOWA_DTX_AGAIN;
}

static int take_the_root_away(towa_dtx *tx, void *arg)
{
    (void)arg;
    return towa_dtx_set_root(tx, "t", 0, 0, NULL);
}

/* A root of 8 bytes is set, found and removed in one transaction. */
static int look_at_a_root(towa_dtx *tx, void *arg)
{
    void *block, *found = &block;
    int rc;
    (void)arg;
    if ((rc = towa_dtx_root(tx, "r", 7, 8, &found)))
        return rc;
    EXPECT(found == NULL);
    if ((rc = towa_dtx_alloc(tx, 8, &block)) || (rc = towa_dtx_set_root(tx, "r", 7, 8, block)) ||
        (rc = towa_dtx_root(tx, "r", 7, 8, &found)))
        return rc;
    EXPECT(found == block);
    if ((rc = towa_dtx_set_root(tx, "r", 0, 0, NULL)))
        return rc;
    return towa_dtx_free(tx, block);
}

static int look_at_a_tree(towa_dtx *tx, void *arg)
{
    void *found;
    (void)arg;
    return towa_dtx_root(tx, "t", 7, 8, &found);
}

static void test_tree_destroyed(void)
{
    uint64_t key;
    begin();
    EXPECT_ERROR(towa_tree_destroy(pool, "t", TOWA_TREE_U64), TOWA_ENOENT, "no tree 't'");
    tree = towa_tree_open(pool, "t", TOWA_TREE_U64);
    open_session();
    for (key = 0; key < 1000; key++)
        EXPECT(towa_tree_insert(session, &key, 8, key) == 1);
    EXPECT_ERROR(towa_tree_destroy(pool, "t", TOWA_TREE_U64), TOWA_EBUSY, "is open");
    EXPECT_ERROR(towa_dtx_run(thread, take_the_root_away, NULL), TOWA_EUSAGE, "a tree which is open");
    EXPECT_ERROR(towa_dtx_run(thread, look_at_a_tree, NULL), TOWA_ETYPE, "256 bytes");
    OK(towa_dtx_run(thread, look_at_a_root, NULL));
    EXPECT(towa_tree_get(session, &key, 8, NULL) == 0);
    close_tree();
    EXPECT_ERROR(towa_tree_destroy(pool, "t", TOWA_TREE_BYTES), TOWA_ETYPE, "u64 keys");
    OK(towa_tree_destroy(pool, "t", TOWA_TREE_U64));
    tree = towa_tree_open(pool, "t", TOWA_TREE_BYTES);
    EXPECT(towa_tree_count(tree) == 0);
    OK(towa_tree_close(tree));
    end();
}

static void test_tree_misuse(void)
{
    uint64_t key = 1, value = 0;
    towa_tree_session *closed;
    begin();
    EXPECT_NULL(towa_tree_open(pool, "t", 2), TOWA_EINVAL, "keys");
    EXPECT_NULL(towa_tree_open(pool, "", TOWA_TREE_U64), TOWA_EINVAL, "name");
    EXPECT_NULL(towa_tree_open(NULL, "t", TOWA_TREE_U64), TOWA_EINVAL, "NULL");
    tree = towa_tree_open(pool, "t", TOWA_TREE_U64);
    open_session();
    EXPECT_ERROR(towa_tree_close(tree), TOWA_EBUSY, "1 session(s)");
    EXPECT_ERROR(towa_tree_insert(session, &key, 7, 1), TOWA_EINVAL, "7 bytes");
    EXPECT_ERROR(towa_tree_insert(session, NULL, 8, 1), TOWA_EINVAL, "NULL");
    EXPECT_ERROR(towa_tree_get(NULL, &key, 8, &value), TOWA_EINVAL, "NULL");
    EXPECT_ERROR(towa_tree_get((towa_tree_session *)tree, &key, 8, &value), TOWA_EUSAGE, "another kind");
    EXPECT(towa_tree_insert(session, &key, 8, 1) == 1);
    EXPECT(towa_tree_get(session, &key, 8, NULL) == 1);
    EXPECT_ERROR(towa_tree_scan(session, NULL, 0, NULL, 0, 8, see_number, NULL), TOWA_EINVAL, "flags");
    EXPECT_ERROR(towa_tree_scan(session, NULL, 0, NULL, 0, 0, NULL, NULL), TOWA_EINVAL, "NULL");
    EXPECT_ERROR(towa_tree_scan(session, &key, 3, NULL, 0, 0, see_number, NULL), TOWA_EINVAL, "3 bytes");
    EXPECT(towa_tree_scan(session, NULL, 0, NULL, 0, 0, use_inside, NULL) == TOWA_DTX_AGAIN);
    EXPECT_ERROR(towa_dtx_unregister((towa_dtx_thread *)session), TOWA_EUSAGE, "another kind");
    closed = session;
    close_tree();
    EXPECT_ERROR(towa_tree_get(closed, &key, 8, &value), TOWA_EUSAGE, "closed already");
    EXPECT_ERROR(towa_tree_check(tree), TOWA_EUSAGE, "closed already");
    EXPECT(towa_tree_count(tree) == TOWA_EUSAGE);
    end();
}
