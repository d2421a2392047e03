/*
 * nv.c - memory of every kind, which changes all the time and can be checked at any time.
 *
 *     nv ROUNDS MEGABYTES     exits with 0 if all memory was what it had to be, else says what was not and exits with 1
 *     nv ROUNDS MEGABYTES REST     changes a page in a hundred each REST microseconds, for measurements
 *
 * Threads work on blocks of heap (brk), mmap and data; a block holds a sequence that follows from its first word. In each round the blocks
 * are checked, moved on, sometimes grown (realloc: brk, mremap), sometimes dropped with MADV_DONTNEED and seen to be zeros.
 * The last line is a sum of all that was seen, the same for each run with the same arguments.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { THREADS = 3, DATA = 1 << 16 };

static uint64_t data[THREADS][DATA] = {{1}}; /* data */
static uint64_t bss[THREADS][DATA];
static long rounds, megabytes, rest;
static _Thread_local uint64_t mine;

static void wrong(const char *what, long round, size_t at)
{
    printf("nv: %s, round %ld, at %zu\n", what, round, at);
    fflush(stdout);
    _exit(1);
}

static uint64_t next(uint64_t x)
{
    x ^= x << 13, x ^= x >> 7, x ^= x << 17;
    return x;
}

static void fill(uint64_t *block, size_t words, uint64_t first)
{
    for (size_t i = 0; i < words; i += 64)
        block[i] = first, first = next(first);
}

static uint64_t check(const uint64_t *block, size_t words, const char *what, long round)
{
    uint64_t x = block[0];
    for (size_t i = 0; i < words; i += 64, x = next(x))
        if (block[i] != x)
            wrong(what, round, i);
    return x;
}

static void *works(void *argument)
{
    size_t me = (size_t)argument, words = (size_t)megabytes << 17, page = 4096;
    size_t small = 20000, grown = 1 << 15;
    uint64_t *large = mmap(NULL, words * 8, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    uint64_t *heap = malloc(small * 8), *grows = malloc(grown * 8), sum = 0, seed = 88172645463325252ull + me;
    volatile uint64_t stack[8192];
    mine = seed;
    fill(large, words, seed), fill(heap, small, seed), fill(grows, grown, seed);
    fill(data[me], DATA, seed), fill(bss[me], DATA, seed);
    stack[0] = seed, stack[8191] = ~seed;
    for (long round = 0; rest && round < rounds; round++) {
        for (size_t i = round % 100 * 512; i < words; i += 100 * 512)
            large[i + 1]++;
        usleep(rest);
    }
    for (long round = 0; round < rounds; round++) {
        if (stack[0] != mine || stack[8191] != ~mine)
            wrong("stack or TLS", round, 0);
        sum += check(large, words, "mmap", round) + check(heap, small, "heap", round);
        sum += check(data[me], DATA, "data", round) + check(bss[me], DATA, "bss", round) + check(grows, grown, "grown", round);
        seed = next(seed);
        mine = seed, stack[0] = seed, stack[8191] = ~seed;
        /* a quarter of the large block, and the rest in turn */
        if (round % 4 == 0)
            fill(large, words, seed);
        fill(heap, small, seed), fill(data[me], DATA, seed), fill(bss[me], DATA, seed);
        if (round % 8 == 3) {
            grown += 30000;
            if (grown > 1 << 20)
                grown = 1 << 15;
            grows = realloc(grows, grown * 8);
            if (!grows)
                wrong("realloc", round, grown);
            fill(grows, grown, seed);
        }
        if (round % 16 == 5) {
            size_t from = words / 4 / 512 * 512;
            /* nobody is there to make the call when the tool was killed */
            int dropped = !madvise(large + from, page * 16, MADV_DONTNEED);
            if (!dropped && errno != ENOSYS)
                wrong("madvise", round, errno);
            for (size_t i = 0; dropped && i < 16 * 512; i++)
                if (large[from + i])
                    wrong("MADV_DONTNEED left something", round, i);
            fill(large, words, seed);
        }
        if (round % 32 == 7) {
            /* new mappings, adopted and gone again; as large as each other, so that addresses come again */
            uint64_t *passing = mmap(NULL, 1 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
            for (size_t i = 0; i < 1 << 17; i++)
                if (passing[i])
                    wrong("a new mapping is not empty", round, i);
            fill(passing, 1 << 17, seed);
            uint64_t *moved = mmap(NULL, 1 << 20, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
            usleep(2000);
            /* page by page: all of it may not be one mapping any more */
            for (size_t i = 0; i < 1 << 17; i += 512)
                if (mremap(passing + i, page, page, MREMAP_MAYMOVE | MREMAP_FIXED, moved + i) == MAP_FAILED)
                    wrong("mremap", round, errno);
            uint64_t *again = mmap(passing, 1 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
            fill(again, 1 << 17, ~seed);
            usleep(2000);
            sum += check(moved, 1 << 17, "moved", round) + check(again, 1 << 17, "in its old place", round);
            munmap(moved, 1 << 20), munmap(again, 1 << 20);
        }
    }
    uint64_t *result = malloc(8);
    *result = sum;
    return result;
}

int main(int argc, char **argv)
{
    pthread_t threads[THREADS];
    uint64_t sum = 0;
    rounds = argc > 1 ? atol(argv[1]) : 100;
    megabytes = argc > 2 ? atol(argv[2]) : 4;
    rest = argc > 3 ? atol(argv[3]) : 0;
    for (size_t i = 0; i < THREADS; i++)
        pthread_create(&threads[i], NULL, works, (void *)i);
    printf("ready\n");
    fflush(stdout);
    for (size_t i = 0; i < THREADS; i++) {
        void *result;
        pthread_join(threads[i], &result);
        sum += *(uint64_t *)result;
        free(result);
    }
    printf("sum %016llx\n", (unsigned long long)sum);
    return 0;
}
