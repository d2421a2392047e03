/* cache: a client of a `towa serve` that is full, and the checker of what it finds there after a power cut.
 *
 *   cache load SOCKET N     stores round after round, from the one behind N, or the newest that the server has a value of;
 *                           "ACK r" on standard output when the server says that round r is durable
 *   cache check SOCKET N    succeeds if each value is one that a round sent for its key, whole, and no older than the newest of round N or
 *                           before: a value may be evicted, and never be mixed, torn or taken back
 *
 * A round stores SETS keys, which follow from its number; a value follows from its key and its round. Of each eight rounds most values have about the
 * same size: so memory has to move between sizes, again and again.
 */
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#define KEYS 1200
#define SETS 6
#define VALUE_MAX 300032

static const uint32_t SIZES[] = {100, 4000, 40000, 200000};

static _Noreturn void die(const char *what) {
    fprintf(stderr, "cache: %s: %s\n", what, errno ? strerror(errno) : "not as expected");
    exit(1);
}

/* SplitMix64 of two numbers. */
static uint64_t mix(uint64_t a, uint64_t b) {
    uint64_t x = a * 0x9E3779B97F4A7C15 + b * 0xD1B54A32D192ED03 + 1;
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB;
    return x ^ (x >> 31);
}

static unsigned key_of(uint64_t round, unsigned nth) { return mix(round, nth) % KEYS; }

/* The value of a key that a round stores; its length. */
static uint32_t make(unsigned key, uint64_t round, char *into) {
    uint64_t random = mix(key, ~round);
    uint32_t size = SIZES[random % 10 < 8 ? (round / 8 + 3) % 4 : random / 10 % 4];
    uint32_t len = size / 2 + (uint32_t)(random >> 32) % size, at;
    for (at = 0; at < len; at += 8) {
        uint64_t word = mix(random, at);
        memcpy(into + at, &word, 8);
    }
    snprintf(into, 40, "%u %llu", key, (unsigned long long)round);
    return len;
}

/* The connection, by its two directions. */
static FILE *in, *out;

static void connect_to(const char *path) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    strncpy(address.sun_path, path, sizeof address.sun_path - 1);
    int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    if (fd < 0 || connect(fd, (struct sockaddr *)&address, sizeof address) != 0) die("connecting");
    in = fdopen(fd, "r");
    out = fdopen(dup(fd), "w");
    if (!in || !out) die("connecting");
}

static const char *line(void) {
    static char text[512];
    errno = 0;
    if (!fgets(text, sizeof text, in)) die("the server's answer");
    return text;
}

static void ask(const char *request) {
    if (fputs(request, out) < 0 || fflush(out) != 0) die("asking the server");
}

/* The round of the value that the server has for `key`; 0: none. Ends the program if the value is none that a round sent. */
static uint64_t found(unsigned key) {
    static char value[VALUE_MAX], expected[VALUE_MAX];
    char request[40];
    unsigned of, len, nth;
    unsigned long long round;
    snprintf(request, sizeof request, "get k%u\r\n", key);
    ask(request);
    const char *answer = line();
    if (strcmp(answer, "END\r\n") == 0) return 0;
    if (sscanf(answer, "VALUE k%u 0 %u", &of, &len) != 2 || of != key || len + 2 > sizeof value) die(answer);
    if (fread(value, 1, len + 2, in) != len + 2 || strcmp(line(), "END\r\n") != 0) die("a value");
    if (sscanf(value, "%u %llu", &of, &round) != 2 || of != key) die("a value is another key's");
    for (nth = 0; nth < SETS && key_of(round, nth) != key; nth++) {}
    if (nth == SETS || make(key, round, expected) != len || memcmp(value, expected, len) != 0) die("a value is not as it was sent");
    return round;
}

static _Noreturn void load(const char *path, uint64_t acked) {
    static char value[VALUE_MAX];
    connect_to(path);
    /* The newest round that left something may have been cut short; those before it were not. */
    uint64_t from = acked + 1;
    for (unsigned key = 0; key < KEYS; key++) {
        uint64_t round = found(key);
        if (round > from) from = round;
    }
    for (uint64_t round = from;; round++) {
        for (unsigned nth = 0; nth < SETS; nth++) {
            unsigned key = key_of(round, nth), len = make(key, round, value);
            fprintf(out, "set k%u 0 0 %u\r\n", key, len);
            if (fwrite(value, 1, len, out) != len) die("storing");
            ask("\r\n");
            if (strcmp(line(), "STORED\r\n") != 0) die("a set of a full cache");
        }
        ask("durable now\r\n");
        if (strncmp(line(), "DURABLE ", 8) != 0) die("the barrier");
        if (printf("ACK %llu\n", (unsigned long long)round) < 0 || fflush(stdout) != 0) die("standard output");
    }
}

static int check(const char *path, uint64_t acked) {
    static uint64_t last[KEYS];
    unsigned stored = 0, held = 0;
    /* Of each key the newest round that was acknowledged. */
    for (uint64_t round = acked; round > 0 && stored < KEYS; round--)
        for (unsigned nth = 0; nth < SETS; nth++) {
            unsigned key = key_of(round, nth);
            if (last[key] == 0) {
                last[key] = round;
                stored++;
            }
        }
    connect_to(path);
    for (unsigned key = 0; key < KEYS; key++) {
        uint64_t round = found(key);
        if (round != 0 && round < last[key]) {
            fprintf(stderr, "cache: k%u is of round %llu, and round %llu was durable\n", key, (unsigned long long)round, (unsigned long long)last[key]);
            return 1;
        }
        held += round != 0;
    }
    fprintf(stderr, "cache: %u of %u keys have a value, %llu rounds were acknowledged\n", held, stored, (unsigned long long)acked);
    /* What some dozens of rounds store is several times what the cache holds: some values went, and not all of them. */
    return held == 0 || (acked > 60 && held == stored);
}

int main(int argc, char **argv) {
    if (argc == 4 && strcmp(argv[1], "load") == 0) load(argv[2], strtoull(argv[3], NULL, 10));
    if (argc == 4 && strcmp(argv[1], "check") == 0) return check(argv[2], strtoull(argv[3], NULL, 10));
    fprintf(stderr, "usage: cache load SOCKET N | cache check SOCKET N\n");
    return 2;
}
