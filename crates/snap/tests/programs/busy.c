/*
 * busy.c - threads in everything that a stop could disturb; each checks for itself that nothing of it shows.
 *
 *     busy SECONDS      exits with 0 if nothing was disturbed, else says what and exits with 1
 */
#define _GNU_SOURCE
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static double seconds;
static volatile int over;

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec / 1e9;
}

static void wrong(const char *what)
{
    printf("busy: %s (errno %d: %s)\n", what, errno, strerror(errno));
    fflush(stdout);
    _exit(1);
}

/* Integer and vector registers in a loop without calls. */
static void *computes(void *unused)
{
    (void)unused;
    while (!over) {
        double a[8] = {1, 2, 3, 4, 5, 6, 7, 8}, sum = 0;
        uint64_t x = 88172645463325252ull;
        for (int i = 0; i < 1000000; i++) {
            x ^= x << 13, x ^= x >> 7, x ^= x << 17;
            for (int j = 0; j < 8; j++)
                a[j] = a[j] * 0.999999 + j;
        }
        for (int j = 0; j < 8; j++)
            sum += a[j];
        static volatile uint64_t first_x;
        static volatile double first_sum;
        if (!first_x)
            first_x = x, first_sum = sum;
        if (first_x != x || first_sum != sum)
            wrong("a computation came out otherwise");
    }
    return NULL;
}

static void *sleeps(void *unused)
{
    struct timespec t = {(time_t)seconds, (long)((seconds - (time_t)seconds) * 1e9)};
    double began = now();
    (void)unused;
    if (syscall(SYS_nanosleep, &t, NULL))
        wrong("nanosleep was interrupted");
    if (now() - began < seconds)
        wrong("nanosleep was too short");
    over = 1;
    return NULL;
}

static void *polls(void *unused)
{
    double began = now();
    int pipes[2];
    (void)unused;
    if (pipe(pipes))
        wrong("pipe");
    struct pollfd poll_this = {pipes[0], POLLIN, 0};
    int got = poll(&poll_this, 1, (int)(seconds * 1000));
    if (got || now() - began < seconds * 0.99)
        wrong("poll ended early");
    return NULL;
}

static void *reads(void *pipe_end)
{
    char byte;
    ssize_t got = read(*(int *)pipe_end, &byte, 1);
    if (got != 1 || byte != 'x')
        wrong("read was disturbed");
    return NULL;
}

static volatile int got_signal;
static void on_signal(int signal)
{
    (void)signal;
    got_signal++;
}

/* Waits with another mask than the lasting one. */
static void *suspends(void *unused)
{
    sigset_t all, none, before;
    (void)unused;
    sigfillset(&all);
    sigemptyset(&none);
    pthread_sigmask(SIG_SETMASK, &all, NULL);
    sigsuspend(&none);
    if (errno != EINTR || got_signal != 1)
        wrong("sigsuspend ended without its signal");
    pthread_sigmask(SIG_SETMASK, NULL, &before);
    for (int s = 1; s < 32; s++)
        if (s != SIGKILL && s != SIGSTOP && !sigismember(&before, s))
            wrong("the mask is another");
    return NULL;
}

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static void *locks(void *unused)
{
    (void)unused;
    pthread_mutex_lock(&lock);
    pthread_mutex_unlock(&lock);
    return NULL;
}

/* Few system calls after another: stops fall before, into and behind them. */
static void *calls(void *unused)
{
    (void)unused;
    for (uint64_t i = 0; !over; i++) {
        char text[32], back[32];
        int pipes[2];
        if (pipe(pipes))
            wrong("pipe");
        int len = snprintf(text, sizeof text, "%llu", (unsigned long long)i);
        if (write(pipes[1], text, len) != len || read(pipes[0], back, sizeof back) != len || memcmp(text, back, len))
            wrong("what came through a pipe is something else");
        close(pipes[0]), close(pipes[1]);
    }
    return NULL;
}

int main(int argc, char **argv)
{
    void *(*work[])(void *) = {computes, sleeps, polls, reads, suspends, locks, calls};
    enum { COUNT = sizeof work / sizeof *work };
    pthread_t threads[COUNT];
    int pipes[2];
    seconds = argc > 1 ? atof(argv[1]) : 1;
    signal(SIGUSR1, on_signal);
    if (pipe(pipes))
        wrong("pipe");
    pthread_mutex_lock(&lock);
    for (int i = 0; i < COUNT; i++)
        if (pthread_create(&threads[i], NULL, work[i], &pipes[0]))
            wrong("pthread_create");
    printf("ready\n");
    fflush(stdout);
    pthread_join(threads[1], NULL);
    pthread_join(threads[2], NULL);
    pthread_mutex_unlock(&lock);
    pthread_kill(threads[4], SIGUSR1);
    if (write(pipes[1], "x", 1) != 1)
        wrong("write");
    for (int i = 0; i < COUNT; i++)
        if (i != 1 && i != 2)
            pthread_join(threads[i], NULL);
    printf("undisturbed\n");
    return 0;
}
