/*
 * steps.c - goes from state to state, each a pure function of the one before; so whatever befalls it, what it says can be checked.
 *
 *     steps FILE MB        appends to FILE "STEP n HASH", every 20 steps, for ever; after SIGUSR1 "END n HASH", and ends
 *     steps - MB           the same lines on standard output, without signals, threads and sleep: what must stand there
 *
 * Each step changes a few pages, and puts what some others hold into the hash: in 1/8 as many steps as there are pages it has seen each
 * byte. It says BROKEN, and ends, if what only the kernel keeps is not what it was: its signal mask, its number of descriptors, the
 * memory of its second thread.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

enum { PAGE = 4096, WORDS = PAGE / 8, SEEN = 8, CHANGED = 6, EVERY = 20 };

static int out = 1;
static volatile sig_atomic_t asked_to_end;
static volatile uint64_t alarms;

static void say(const char *what, uint64_t step, uint64_t hash) {
    char line[80];
    int len = snprintf(line, sizeof line, "%s %llu %016llx\n", what, (unsigned long long)step, (unsigned long long)hash);
    if (write(out, line, len) != len) abort();
}

static _Noreturn void broken(const char *what) {
    char line[80];
    int len = snprintf(line, sizeof line, "BROKEN %s\n", what);
    if (write(out, line, len) != len) abort();
    _exit(1);
}

static uint64_t mix(uint64_t a, uint64_t b) {
    a = (a ^ b) * 0x9e3779b97f4a7c15u;
    return a ^ a >> 29;
}

/* Its own little world: pairs whose sum never changes. */
static void *mate(void *unused) {
    static uint64_t pair[512][2];
    for (uint64_t n = 0;; n++) {
        for (int i = 0; i < 512; i++) {
            if (pair[i][0] + pair[i][1] != 0) broken("memory of the second thread");
            pair[i][0] += n;
            pair[i][1] -= n;
        }
        struct timespec time = {0, 700000};
        nanosleep(&time, NULL);
    }
    return unused;
}

static void on_alarm(int signal) { (void)signal, alarms++; }
static void on_end(int signal) { (void)signal, asked_to_end = 1; }

static int descriptors(void) {
    int count = 0;
    DIR *dir = opendir("/proc/self/fd");
    if (dir == NULL) return -1;
    while (readdir(dir) != NULL) count++;
    closedir(dir);
    return count;
}

/* Signals come all the time, on a stack of their own; one is blocked. */
static void surround(sigset_t *mask) {
    static char stack[1 << 16];
    stack_t alternate = {.ss_sp = stack, .ss_size = sizeof stack};
    struct sigaction alarm = {.sa_handler = on_alarm, .sa_flags = SA_ONSTACK | SA_RESTART}, end = {.sa_handler = on_end};
    struct itimerval often = {{0, 900}, {0, 900}};
    sigset_t one;
    pthread_t thread;
    sigemptyset(&one);
    sigaddset(&one, SIGUSR2);
    if (sigaltstack(&alternate, NULL) || sigprocmask(SIG_BLOCK, &one, NULL) || sigprocmask(SIG_BLOCK, NULL, mask)) abort();
    if (pthread_create(&thread, NULL, mate, NULL)) abort();
    if (sigaction(SIGALRM, &alarm, NULL) || sigaction(SIGUSR1, &end, NULL) || setitimer(ITIMER_REAL, &often, NULL)) abort();
}

static uint64_t step(uint64_t *memory, uint64_t pages, uint64_t n, uint64_t hash, double *real) {
    for (uint64_t seen = 0; seen < SEEN; seen++) {
        const uint64_t *page = memory + (n * SEEN + seen) % pages * WORDS;
        for (int word = 0; word < WORDS; word += 4) hash = mix(hash, page[word] + page[word + 1] * 3 + page[word + 2] * 5 + page[word + 3] * 7);
    }
    for (uint64_t changed = 0; changed < CHANGED; changed++) {
        hash = mix(hash, n + changed);
        uint64_t *page = memory + hash % pages * WORDS;
        for (int word = 0; word < WORDS; word += 16) page[word + hash % 16] ^= hash + word;
    }
    *real = *real * 0.75 + (double)(hash >> 40);
    uint64_t bits;
    memcpy(&bits, real, 8);
    return mix(hash, bits);
}

int main(int argc, char **argv) {
    if (argc != 3) return 2;
    int alone = strcmp(argv[1], "-") == 0;
    uint64_t pages = strtoull(argv[2], NULL, 10) << 8, hash = 1;
    uint64_t *memory = mmap(NULL, pages * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) return 2;
    for (uint64_t word = 0; word < pages * WORDS; word++) memory[word] = mix(word, 7);
    double real = 1;
    sigset_t mask, now;
    if (!alone) {
        out = open(argv[1], O_WRONLY | O_CREAT | O_APPEND, 0600);
        if (out < 0) return 2;
        surround(&mask);
    }
    int open_now = descriptors();
    for (uint64_t n = 1;; n++) {
        hash = step(memory, pages, n, hash, &real);
        if (alone) {
            if (n % EVERY == 0) say("STEP", n, hash);
            continue;
        }
        if (sigprocmask(SIG_BLOCK, NULL, &now) || memcmp(&mask, &now, 8) != 0) broken("signal mask");
        if (n % EVERY == 0) {
            if (asked_to_end) return say("END", n, hash), 0;
            say("STEP", n, hash);
            /* What a tool opens here for a moment may be seen; what it left, is there the next time. */
            static int more;
            more = descriptors() == open_now ? 0 : more + 1;
            if (more > 3) broken("descriptors");
        }
        struct timespec time = {0, 150000};
        nanosleep(&time, NULL);
    }
}
