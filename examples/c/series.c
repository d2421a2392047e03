/*
 * series.c - measurements in a vector that survives kill -9; no transaction, lock or mark is written here.
 *
 *     series POOL add VALUE     appends a measurement, and is durable when the command returns
 *     series POOL fix N VALUE   replaces number N
 *     series POOL dump          prints NUMBER VALUE, a line each
 *     series POOL fill          appends for ever; prints "durable COUNT" now and then
 *
 *     cc series.c $(pkg-config --cflags --libs towa) -o series
 *
 * series.cpp reads its pools, and the other way round: a vector is known by its name and the size of its items.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <towa.h>

struct sample {
    uint64_t number;
    double value;
};

static void check(int code)
{
    if (code >= TOWA_OK)
        return;
    fprintf(stderr, "series: %s\n", towa_last_error());
    exit(1);
}

static int run(towa_vector *series, int argc, char **argv)
{
    struct sample s;
    uint64_t i;
    if (!strcmp(argv[2], "add") && argc == 4) {
        s.number = (uint64_t)towa_vector_count(series);
        s.value = atof(argv[3]);
        check(towa_vector_push(series, NULL, &s, NULL));
    } else if (!strcmp(argv[2], "fix") && argc == 5) {
        int there;
        s.number = strtoull(argv[3], NULL, 10);
        s.value = atof(argv[4]);
        check(there = towa_vector_set(series, NULL, s.number, &s));
        if (!there) {
            fprintf(stderr, "series: there is no number %s\n", argv[3]);
            return 1;
        }
    } else if (!strcmp(argv[2], "dump") && argc == 3) {
        int there;
        for (i = 0; (there = towa_vector_get(series, i, &s)) == 1; i++)
            printf("%" PRIu64 " %g\n", s.number, s.value);
        check(there);
    } else if (!strcmp(argv[2], "fill") && argc == 3) {
        for (i = (uint64_t)towa_vector_count(series);; i++) {
            s.number = i;
            s.value = (double)i / 2;
            check(towa_vector_push(series, NULL, &s, NULL));
            if (i % 1000 == 999) {
                check(towa_sync()); /* all that was pushed before is durable after it */
                printf("durable %" PRIu64 "\n", i + 1);
                fflush(stdout);
            }
        }
    } else {
        fprintf(stderr, "usage: series POOL add VALUE | fix N VALUE | dump | fill\n");
        return 2;
    }
    return 0;
}

int main(int argc, char **argv)
{
    towa_options options = TOWA_OPTIONS_INIT;
    towa_vector *series;
    int status;
    if (argc < 3) {
        fprintf(stderr, "usage: series POOL add VALUE | fix N VALUE | dump | fill\n");
        return 2;
    }
    options.heap_len = 256u << 20;
    check(towa_init(argv[1], &options));
    check(towa_thread_init());
    series = towa_vector_open(NULL, "series", sizeof(struct sample));
    if (!series)
        check(towa_last_error_code());
    status = run(series, argc, argv);
    towa_vector_close(series);
    check(towa_finalize()); /* makes the last epoch durable */
    return status;
}
