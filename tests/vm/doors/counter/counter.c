/* counter: the smallest program that keeps a promise across a power cut; the harness' self-test.
 *
 *   counter load FILE       n = n + 1 in a MAP_SYNC mapping, written back and fenced, then "ACK n" on standard output, for ever
 *   counter check FILE N    succeeds if the file holds n >= N and both copies are in their order
 *
 * File, 2 MiB:   0: first copy of n (u64)    64: second copy of n (u64), another cache line
 * Invariant: first >= second >= first - 1, because the first is durable before the second is written.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <immintrin.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define SIZE (2u << 20)

static _Noreturn void die(const char *what) {
    fprintf(stderr, "counter: %s: %s\n", what, strerror(errno));
    exit(1);
}

/* clflush + mfence is in every x86-64, so that this program needs no detection; speed is no aim here. */
static void persist(volatile uint64_t *word) {
    _mm_clflush((const void *)word);
    _mm_mfence();
}

static volatile uint64_t *map(const char *path, int create) {
    int fd = open(path, create ? O_RDWR | O_CREAT : O_RDWR, 0600);
    if (fd < 0) die(path);
    if (create && (posix_fallocate(fd, 0, SIZE) != 0 || fsync(fd) != 0)) die("allocating the file");
    /* MAP_SYNC fails unless the file system gives the memory itself: the harness would test nothing then. */
    void *at = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_SHARED_VALIDATE | MAP_SYNC, fd, 0);
    if (at == MAP_FAILED) die("mmap with MAP_SYNC");
    return at;
}

static _Noreturn void load(const char *path) {
    volatile uint64_t *first = map(path, 1), *second = first + 8;
    /* The file's name is durable once its directory is. */
    int dir = open("/mnt", O_RDONLY | O_DIRECTORY);
    if (dir < 0 || fsync(dir) != 0) die("fsync of the directory");
    for (uint64_t n = *first + 1;; n++) {
        *first = n;
        persist(first);
        *second = n;
        persist(second);
        if (printf("ACK %llu\n", (unsigned long long)n) < 0 || fflush(stdout) != 0) die("standard output");
    }
}

static int check(const char *path, uint64_t acked) {
    volatile uint64_t *first = map(path, 0), *second = first + 8;
    uint64_t a = *first, b = *second;
    fprintf(stderr, "counter: first %llu, second %llu, acknowledged %llu\n", (unsigned long long)a, (unsigned long long)b, (unsigned long long)acked);
    if (b < acked) return fprintf(stderr, "counter: an acknowledged number is lost\n"), 1;
    if (a != b && a != b + 1) return fprintf(stderr, "counter: the two copies are out of order\n"), 1;
    return 0;
}

int main(int argc, char **argv) {
    if (argc == 3 && strcmp(argv[1], "load") == 0) load(argv[2]);
    if (argc == 4 && strcmp(argv[1], "check") == 0) return check(argv[2], strtoull(argv[3], NULL, 10));
    fprintf(stderr, "usage: counter load FILE | counter check FILE N\n");
    return 2;
}
