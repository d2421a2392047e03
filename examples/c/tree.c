/*
 * tree.c - words and their numbers in order, in a durable B+-tree (towa_tx.h).
 *
 *     tree POOL set WORD NUMBER
 *     tree POOL get WORD          fails (1) if it is not there
 *     tree POOL del WORD          likewise
 *     tree POOL dump [FROM [TO]]  those with FROM <= word < TO, in order
 *     tree POOL fill              adds word-000000000, word-000000001, ... from where it was; prints "durable COUNT" now and then
 *
 *     cc tree.c $(pkg-config --cflags --libs towa) -o tree
 *
 * Each change is durable when its call returns: kill it any time, and what it has said is there.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <towa_tx.h>

static void check(int code)
{
    if (code >= 0)
        return;
    fprintf(stderr, "tree: %s\n", towa_last_error());
    exit(1);
}

static int print(const void *key, size_t key_len, uint64_t value, void *unused)
{
    (void)unused;
    printf("%.*s %" PRIu64 "\n", (int)key_len, (const char *)key, value);
    return 0; /* go on */
}

static void fill(towa_tree *tree, towa_tree_session *session)
{
    int64_t count = towa_tree_count(tree);
    check(count < 0 ? (int)count : 0);
    for (;; count++) {
        char word[32];
        int len = snprintf(word, sizeof word, "word-%09" PRId64, count);
        check(towa_tree_insert(session, word, (size_t)len, (uint64_t)count));
        if (count % 5000 == 4999) {
            printf("durable %" PRId64 "\n", count + 1);
            fflush(stdout);
        }
    }
}

int main(int argc, char **argv)
{
    towa_dtx_pool *pool;
    towa_tree *tree = NULL;
    towa_tree_session *session = NULL;
    const char *what = argc > 2 ? argv[2] : "";
    const char *word = argc > 3 ? argv[3] : NULL, *to = argc > 4 ? argv[4] : NULL;
    uint64_t number = 0;
    int there = 1;
    if (!((strcmp(what, "set") == 0 && argc == 5) || (strcmp(what, "get") == 0 && argc == 4) ||
          (strcmp(what, "del") == 0 && argc == 4) || (strcmp(what, "dump") == 0 && argc <= 5) ||
          (strcmp(what, "fill") == 0 && argc == 3))) {
        fprintf(stderr, "usage: tree POOL set WORD NUMBER | get WORD | del WORD | dump [FROM [TO]] | fill\n");
        return 2;
    }
    pool = towa_dtx_pool_open(argv[1], NULL);
    if (pool)
        tree = towa_tree_open(pool, "words", TOWA_TREE_BYTES);
    if (tree)
        session = towa_tree_session_open(tree);
    if (!session)
        check(towa_last_error_code());
    if (strcmp(what, "set") == 0) {
        check(towa_tree_upsert(session, word, strlen(word), strtoull(to, NULL, 10), NULL));
    } else if (strcmp(what, "get") == 0) {
        check(there = towa_tree_get(session, word, strlen(word), &number));
        if (there)
            printf("%" PRIu64 "\n", number);
    } else if (strcmp(what, "del") == 0) {
        check(there = towa_tree_remove(session, word, strlen(word), NULL));
    } else if (strcmp(what, "dump") == 0) {
        check(towa_tree_scan(session, word, word ? strlen(word) : 0, to, to ? strlen(to) : 0, 0, print, NULL));
    } else {
        fill(tree, session);
    }
    check(towa_tree_session_close(session));
    check(towa_tree_close(tree));
    check(towa_dtx_pool_close(pool));
    return there ? 0 : 1;
}
