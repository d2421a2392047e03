/*
 * answers.c - a program that does what it is told on standard input, a line each, and answers with a line that begins with "= " and ends with ".".
 *
 *     count              how often it was asked that, from 1
 *     who                pid, user, group, capabilities: effective, bounding
 *     clock              CLOCK_MONOTONIC and CLOCK_BOOTTIME by the vdso, in ns; "wrong" if the system call says otherwise
 *     sleep              sleeps 50 ms relatively, absolutely, and by a timer; the least of the three in ms
 *     orphan             leaves a grandchild that ends soon; how many processes here have ended and were not waited for
 *     background FILE    leaves a grandchild that makes FILE half a second later
 *     exit N
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/timerfd.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static int64_t ns(const struct timespec *t)
{
    return t->tv_sec * 1000000000ll + t->tv_nsec;
}

static int64_t now(clockid_t clock)
{
    struct timespec t;
    clock_gettime(clock, &t);
    return ns(&t);
}

/* By the vdso; -1 if the kernel itself does not agree before and after. */
static int64_t sure(clockid_t clock)
{
    struct timespec before, after;
    syscall(SYS_clock_gettime, clock, &before);
    int64_t between = now(clock);
    syscall(SYS_clock_gettime, clock, &after);
    return ns(&before) <= between && between <= ns(&after) ? between : -1;
}

static const char *of_status(const char *key)
{
    static char line[4096];
    FILE *status = fopen("/proc/self/status", "r");
    while (fgets(line, sizeof line, status))
        if (!strncmp(line, key, strlen(key)))
            break;
    fclose(status);
    line[strcspn(line, "\n")] = 0;
    return line + strlen(key) + 1;
}

static int64_t sleeps(void)
{
    struct timespec t = {0, 50000000};
    struct itimerspec timer = {{0, 0}, {0, 50000000}};
    uint64_t ticks;
    int64_t began = now(CLOCK_MONOTONIC), least;
    clock_nanosleep(CLOCK_MONOTONIC, 0, &t, NULL);
    least = now(CLOCK_MONOTONIC) - began;
    began = now(CLOCK_BOOTTIME);
    t.tv_sec = (began + 50000000) / 1000000000, t.tv_nsec = (began + 50000000) % 1000000000;
    clock_nanosleep(CLOCK_BOOTTIME, TIMER_ABSTIME, &t, NULL);
    if (now(CLOCK_BOOTTIME) - began < least)
        least = now(CLOCK_BOOTTIME) - began;
    began = now(CLOCK_MONOTONIC);
    int fd = timerfd_create(CLOCK_MONOTONIC, 0);
    timerfd_settime(fd, 0, &timer, NULL);
    if (read(fd, &ticks, sizeof ticks) != sizeof ticks)
        return -1;
    close(fd);
    if (now(CLOCK_MONOTONIC) - began < least)
        least = now(CLOCK_MONOTONIC) - began;
    return least / 1000000;
}

/* A grandchild whose parent ends at once. */
static void leave(const char *file, int ms)
{
    pid_t child = fork();
    if (!child) {
        if (!fork()) {
            close(0), close(1), close(2);
            usleep(ms * 1000);
            if (file)
                close(open(file, O_CREAT | O_WRONLY, 0600));
        }
        _exit(0);
    }
    waitpid(child, NULL, 0);
}

static int ended(void)
{
    int count = 0;
    DIR *proc = opendir("/proc");
    for (struct dirent *entry; (entry = readdir(proc));) {
        char path[300], line[512] = "";
        snprintf(path, sizeof path, "/proc/%s/stat", entry->d_name);
        FILE *stat = entry->d_name[0] >= '0' && entry->d_name[0] <= '9' ? fopen(path, "r") : NULL;
        if (!stat)
            continue;
        if (fgets(line, sizeof line, stat) && strstr(line, ") Z"))
            count++;
        fclose(stat);
    }
    closedir(proc);
    return count;
}

int main(void)
{
    static char line[4096];
    int count = 0;
    printf("ready\n");
    fflush(stdout);
    while (fgets(line, sizeof line, stdin)) {
        line[strcspn(line, "\n")] = 0;
        printf("= ");
        if (!strcmp(line, "count"))
            printf("%d", ++count);
        if (!strcmp(line, "who")) {
            printf("%d %d %d ", getpid(), getuid(), getgid());
            printf("%s ", of_status("CapEff:"));
            printf("%s", of_status("CapBnd:"));
        }
        if (!strcmp(line, "clock")) {
            int64_t monotonic = sure(CLOCK_MONOTONIC), boottime = sure(CLOCK_BOOTTIME);
            if (monotonic < 0 || boottime < 0)
                printf("wrong");
            else
                printf("%lld %lld", (long long)monotonic, (long long)boottime);
        }
        if (!strcmp(line, "sleep"))
            printf("%lld", (long long)sleeps());
        if (!strcmp(line, "orphan")) {
            leave(NULL, 10);
            printf("%d", ended());
        }
        if (!strncmp(line, "background ", 11))
            leave(line + 11, 500);
        if (!strncmp(line, "exit ", 5))
            return atoi(line + 5);
        printf(".\n");
        fflush(stdout);
    }
    return 0;
}
