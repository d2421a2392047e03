/*
 * many.c - has many threads, each with an alternate signal stack of another length, and many timers, each with another time.
 *
 *     many THREADS TIMERS     alternate stacks of 16384 + n * 64 bytes, the main thread's n is 0; timers of 100 * (10 + n) seconds
 */
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

static pthread_barrier_t there;

static void *one(void *number)
{
    size_t size = 16384 + (size_t)number * 64;
    stack_t stack = {.ss_sp = malloc(size), .ss_size = size};
    if (sigaltstack(&stack, NULL))
        abort();
    pthread_barrier_wait(&there);
    for (;;)
        usleep(3000);
}

/* When all have their stacks. */
static void *say(void *unused)
{
    pthread_barrier_wait(&there);
    printf("ready\n");
    fflush(stdout);
    return unused;
}

int main(int argc, char **argv)
{
    if (argc < 3)
        return 2;
    long threads = atol(argv[1]), timers = atol(argv[2]);
    if (pthread_barrier_init(&there, NULL, threads + 1))
        return 1;
    for (long n = 1; n < threads; n++) {
        pthread_t thread;
        if (pthread_create(&thread, NULL, one, (void *)n))
            return 1;
    }
    for (long n = 0; n < timers; n++) {
        struct sigevent nothing = {.sigev_notify = SIGEV_NONE};
        struct itimerspec time = {.it_value.tv_sec = 100 * (10 + n)};
        timer_t timer;
        if (timer_create(CLOCK_MONOTONIC, &nothing, &timer) || timer_settime(timer, 0, &time, NULL))
            return 1;
    }
    pthread_t says;
    return pthread_create(&says, NULL, say, NULL) || one(NULL) != NULL;
}
