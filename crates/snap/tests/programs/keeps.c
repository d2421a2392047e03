/*
 * keeps.c - has a bit of all that the kernel keeps for a process and its threads; says whether it still has it when a file appears.
 *
 *     keeps FILE     waits for FILE, then prints "kept" and exits with 0, or says what is not there any more and exits with 1
 */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/personality.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static const char *file;
static char altstack[32768];
static __thread int own = 7;
static pid_t main_tid, thread_tid;

static void wrong(const char *what)
{
    printf("lost: %s (errno %d)\n", what, errno);
    fflush(stdout);
    _exit(1);
}

#define MUST(condition)          \
    do {                         \
        if (!(condition))        \
            wrong(#condition);   \
    } while (0)

static volatile int usr1;
static void on_usr1(int signal, siginfo_t *info, void *context)
{
    char here;
    (void)signal, (void)context;
    MUST(info->si_code == SI_TKILL);
    MUST(&here >= altstack && &here < altstack + sizeof altstack);
    usr1++;
}

#define BEST_EFFORT(level) (2 << 13 | (level))
static int io_priority(void)
{
    return syscall(SYS_ioprio_get, 1, 0);
}

static void oom_score(const char *how, char *text, size_t len)
{
    FILE *file = fopen("/proc/self/oom_score_adj", how);
    if (*how == 'w')
        fputs(text, file);
    else
        MUST(fgets(text, len, file));
    fclose(file);
}

static void wait_for_file(void)
{
    while (access(file, F_OK))
        usleep(2000);
}

static void *thread(void *unused)
{
    stack_t stack = {.ss_sp = altstack, .ss_size = sizeof altstack}, now;
    char name[16];
    (void)unused;
    thread_tid = syscall(SYS_gettid);
    own = 9;
    sigaltstack(&stack, NULL);
    prctl(PR_SET_NAME, "the-thread");
    prctl(PR_SET_TIMERSLACK, 77777);
    syscall(SYS_ioprio_set, 1, 0, BEST_EFFORT(6));
    wait_for_file();
    MUST(prctl(PR_GET_TIMERSLACK) == 77777);
    MUST(io_priority() == BEST_EFFORT(6));
    MUST(own == 9);
    MUST(syscall(SYS_gettid) == thread_tid);
    MUST(!sigaltstack(NULL, &now) && now.ss_sp == altstack && now.ss_size == sizeof altstack);
    MUST(!prctl(PR_GET_NAME, name) && !strcmp(name, "the-thread"));
    pthread_kill(pthread_self(), SIGUSR1);
    MUST(usr1 == 1);
    return NULL;
}

int main(int argc, char **argv)
{
    struct sigaction action = {.sa_sigaction = on_usr1, .sa_flags = SA_SIGINFO | SA_ONSTACK | SA_RESTART}, now;
    struct itimerval in_an_hour = {{0, 5000}, {3600, 0}}, left;
    struct itimerspec in_two_hours = {{7, 0}, {7200, 0}}, timer_left;
    struct sigevent event = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGRTMIN + 3, .sigev_value.sival_int = 42};
    struct rlimit limit = {100, 200};
    union sigval value = {.sival_int = 4711};
    sigset_t mask;
    siginfo_t info;
    timer_t timer;
    pthread_t other;
    char name[16], score[16];
    int secure_bits, spectre;
    if (argc != 2)
        return 2;
    file = argv[1];
    main_tid = getpid();
    sigaddset(&action.sa_mask, SIGTERM);
    sigaction(SIGUSR1, &action, NULL);
    signal(SIGPIPE, SIG_IGN);
    sigemptyset(&mask);
    sigaddset(&mask, SIGUSR2);
    sigaddset(&mask, SIGRTMIN + 5);
    sigprocmask(SIG_BLOCK, &mask, NULL);
    kill(getpid(), SIGUSR2);
    sigqueue(getpid(), SIGRTMIN + 5, value);
    value.sival_int++;
    sigqueue(getpid(), SIGRTMIN + 5, value);
    setitimer(ITIMER_REAL, &in_an_hour, NULL);
    timer_create(CLOCK_MONOTONIC, &event, &timer);
    timer_settime(timer, 0, &in_two_hours, NULL);
    umask(027);
    setrlimit(RLIMIT_NOFILE, &limit);
    personality(ADDR_NO_RANDOMIZE | UNAME26);
    prctl(PR_SET_TIMERSLACK, 123456);
    syscall(SYS_ioprio_set, 1, 0, BEST_EFFORT(2));
    oom_score("w", "456", 0);
    /* Only root may. */
    prctl(PR_SET_SECUREBITS, 1 << 2 | 1 << 6);
    secure_bits = prctl(PR_GET_SECUREBITS);
    /* Only where the processor lets it be chosen. */
    prctl(PR_SET_SPECULATION_CTRL, PR_SPEC_STORE_BYPASS, PR_SPEC_DISABLE, 0, 0);
    spectre = prctl(PR_GET_SPECULATION_CTRL, PR_SPEC_STORE_BYPASS, 0, 0, 0);
    prctl(PR_SET_NAME, "keeps) it");
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    prctl(PR_SET_PDEATHSIG, SIGHUP);
    setpriority(PRIO_PROCESS, 0, 5);
    MUST(!pthread_create(&other, NULL, thread, NULL));
    while (!thread_tid)
        usleep(1000);
    usleep(20000);
    printf("ready\n");
    fflush(stdout);
    wait_for_file();

    MUST(getpid() == main_tid && syscall(SYS_gettid) == main_tid);
    MUST(own == 7);
    MUST(!sigaction(SIGUSR1, NULL, &now) && now.sa_sigaction == on_usr1 && (now.sa_flags & ~0x4000000) == action.sa_flags);
    MUST(sigismember(&now.sa_mask, SIGTERM) && !sigismember(&now.sa_mask, SIGINT));
    MUST(!sigaction(SIGPIPE, NULL, &now) && now.sa_handler == SIG_IGN);
    MUST(!getitimer(ITIMER_REAL, &left) && left.it_value.tv_sec > 3000 && left.it_interval.tv_usec == 5000);
    MUST(!timer_gettime(timer, &timer_left) && timer_left.it_value.tv_sec > 7000 && timer_left.it_interval.tv_sec == 7);
    MUST(umask(0) == 027);
    MUST(!getrlimit(RLIMIT_NOFILE, &limit) && limit.rlim_cur == 100 && limit.rlim_max == 200);
    MUST(!prctl(PR_GET_NAME, name) && !strcmp(name, "keeps) it"));
    int yes = 0;
    MUST(!prctl(PR_GET_CHILD_SUBREAPER, &yes) && yes == 1);
    MUST(getpriority(PRIO_PROCESS, 0) == 5);
    MUST(personality(0xffffffff) == (ADDR_NO_RANDOMIZE | UNAME26));
    MUST(prctl(PR_GET_TIMERSLACK) == 123456);
    MUST(io_priority() == BEST_EFFORT(2));
    oom_score("r", score, sizeof score);
    MUST(atoi(score) == 456);
    MUST(prctl(PR_GET_SECUREBITS) == secure_bits);
    MUST(prctl(PR_GET_SPECULATION_CTRL, PR_SPEC_STORE_BYPASS, 0, 0, 0) == spectre);
    pthread_join(other, NULL);
    struct timespec at_once = {0, 0};
    sigemptyset(&mask);
    sigaddset(&mask, SIGUSR2);
    MUST(sigtimedwait(&mask, &info, &at_once) == SIGUSR2 && info.si_pid == main_tid);
    sigemptyset(&mask);
    sigaddset(&mask, SIGRTMIN + 5);
    MUST(sigtimedwait(&mask, &info, &at_once) == SIGRTMIN + 5 && info.si_value.sival_int == 4711);
    MUST(sigtimedwait(&mask, &info, &at_once) == SIGRTMIN + 5 && info.si_value.sival_int == 4712);
    MUST(sigtimedwait(&mask, &info, &at_once) < 0);
    printf("kept\n");
    return 0;
}
