/*
 * uses.c - opens one of everything; when a file appears, uses it all and says whether it is what it was.
 *
 *     uses DIR     waits for DIR/go-on, then prints "kept" and exits with 0, or says what is not there any more and exits with 1
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/timerfd.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define MUST(condition)                                                              \
    do {                                                                             \
        if (!(condition)) {                                                          \
            printf("lost: %s (line %d, errno %d)\n", #condition, __LINE__, errno);   \
            exit(1);                                                                 \
        }                                                                            \
    } while (0)

static int accepts(int listener, const struct sockaddr *address, socklen_t len, int family)
{
    char bytes[4] = "";
    int here = socket(family, SOCK_STREAM, 0), there;
    if (connect(here, address, len) || (there = accept(listener, NULL, NULL)) < 0)
        return 0;
    return write(here, "yes", 3) == 3 && read(there, bytes, 3) == 3 && !strcmp(bytes, "yes");
}

static volatile int notified;

/* In a thread that libc makes for it: the kernel's timer is for that thread. */
static void notify(union sigval value)
{
    notified = value.sival_int;
}

int main(int argc, char **argv)
{
    struct sockaddr_in tcp_name = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    struct sockaddr_un unix_name = {.sun_family = AF_UNIX, .sun_path = "listener"};
    struct itimerspec soon = {{0, 0}, {0, 400000000}}, left;
    struct epoll_event event = {.events = EPOLLIN, .data.u64 = 0x123456789abcdef0}, got;
    struct flock lock = {.l_type = F_WRLCK, .l_start = 10, .l_len = 5};
    struct signalfd_siginfo signal_info;
    char bytes[64] = "";
    uint64_t count;
    sigset_t signals;
    socklen_t len = sizeof tcp_name;
    int pipes[2], one = 1;
    if (argc < 2 || chdir(argv[1]))
        return 2;
    int appends = open("appended", O_RDWR | O_CREAT | O_APPEND, 0600), duplicate, again;
    MUST(write(appends, "abcdef", 6) == 6 && lseek(appends, 4, SEEK_SET) == 4);
    duplicate = fcntl(appends, F_DUPFD, 40);
    again = open("appended", O_RDONLY | O_CLOEXEC);
    int locked = open("locked", O_RDWR | O_CREAT, 0600);
    MUST(!fcntl(locked, F_SETLK, &lock) && !flock(locked, LOCK_EX));
    int nameless = open("nameless", O_RDWR | O_CREAT, 0600);
    unlink("nameless");
    MUST(write(nameless, "no name", 7) == 7);
    int temporary = open(".", O_TMPFILE | O_RDWR, 0600);
    MUST(temporary < 0 || write(temporary, "temporary", 9) == 9);
    int memory = memfd_create("here", 0);
    MUST(write(memory, "in memory", 9) == 9);
    int directory = open(".", O_RDONLY | O_DIRECTORY), zero = open("/dev/zero", O_RDONLY);
    /* Of each process its own; begun to be read, so that it stands in the middle. */
    int memory_of_own = open("/proc/self/mem", O_RDWR), maps = open("/proc/self/maps", O_RDONLY | O_CLOEXEC);
    DIR *descriptors = opendir("/proc/self/fd");
    MUST(memory_of_own >= 0 && read(maps, bytes, 20) == 20 && descriptors && readdir(descriptors));
    MUST(!pipe2(pipes, O_NONBLOCK) && write(pipes[1], "hello", 5) == 5 && fcntl(pipes[0], F_SETPIPE_SZ, 1 << 17) == 1 << 17);
    int counter = eventfd(5, EFD_SEMAPHORE), timer = timerfd_create(CLOCK_MONOTONIC, 0);
    MUST(!timerfd_settime(timer, 0, &soon, NULL));
    sigemptyset(&signals);
    sigaddset(&signals, SIGUSR2);
    sigprocmask(SIG_BLOCK, &signals, NULL);
    int signal = signalfd(-1, &signals, 0), epoll = epoll_create1(0);
    MUST(!epoll_ctl(epoll, EPOLL_CTL_ADD, pipes[0], &event));
    kill(getpid(), SIGUSR2);
    int tcp = socket(AF_INET, SOCK_STREAM, 0), local = socket(AF_UNIX, SOCK_STREAM, 0);
    setsockopt(tcp, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    MUST(!bind(tcp, (struct sockaddr *)&tcp_name, sizeof tcp_name) && !listen(tcp, 7));
    MUST(!getsockname(tcp, (struct sockaddr *)&tcp_name, &len));
    MUST(!bind(local, (struct sockaddr *)&unix_name, sizeof unix_name) && !listen(local, 3));
    int pair[2], messages[2];
    MUST(!socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, pair) && write(pair[0], "to one", 6) == 6 && write(pair[1], "to zero", 7) == 7);
    MUST(!shutdown(pair[0], SHUT_WR) && !socketpair(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0, messages));
    char *shared = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    strcpy(shared + 4000, "shared memory");
    char *of_file = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE, appends, 0);
    of_file[1] = 'X';
    struct sigevent in_thread = {.sigev_notify = SIGEV_THREAD, .sigev_notify_function = notify, .sigev_value.sival_int = 42};
    struct itimerspec again_and_again = {{0, 5000000}, {0, 5000000}};
    timer_t for_thread;
    MUST(!timer_create(CLOCK_MONOTONIC, &in_thread, &for_thread) && !timer_settime(for_thread, 0, &again_and_again, NULL));
    printf("ready\n");
    fflush(stdout);
    while (access("go-on", F_OK))
        usleep(2000);

    MUST(lseek(duplicate, 0, SEEK_CUR) == 4 && lseek(again, 0, SEEK_CUR) == 0);
    MUST(read(appends, bytes, 10) == 2 && !memcmp(bytes, "ef", 2) && lseek(duplicate, 0, SEEK_CUR) == 6);
    MUST(fcntl(again, F_GETFD) == FD_CLOEXEC && !fcntl(appends, F_GETFD) && fcntl(appends, F_GETFL) & O_APPEND);
    MUST(write(duplicate, "gh", 2) == 2 && read(again, bytes, 10) == 8 && !memcmp(bytes, "abcdefgh", 8));
    MUST(of_file[1] == 'X' && of_file[0] == 'a');
    int other = open("locked", O_RDWR);
    MUST(flock(other, LOCK_SH | LOCK_NB) && errno == EWOULDBLOCK);
    notified = 0;
    for (int tries = 0; !notified && tries < 5000; tries++)
        usleep(1000);
    MUST(notified == 42);
    lock.l_whence = SEEK_SET;
    if (!fork())
        _exit(fcntl(locked, F_GETLK, &lock) || lock.l_type != F_WRLCK || lock.l_pid != getppid() || lock.l_start != 10 || lock.l_len != 5);
    int status;
    MUST(wait(&status) > 0 && !status);
    MUST(temporary < 0 || (lseek(temporary, 0, SEEK_CUR) == 9 && pread(temporary, bytes, 10, 0) == 9 && !memcmp(bytes, "temporary", 9)));
    MUST(lseek(nameless, 0, SEEK_CUR) == 7 && pread(nameless, bytes, 10, 0) == 7 && !memcmp(bytes, "no name", 7));
    MUST(pread(memory, bytes, 10, 0) == 9 && !memcmp(bytes, "in memory", 9));
    MUST(pread(memory_of_own, &count, 8, (off_t)(uintptr_t)&event.data) == 8 && count == event.data.u64);
    MUST(lseek(maps, 0, SEEK_CUR) == 20 && read(maps, bytes, 20) == 20 && fcntl(maps, F_GETFD) == FD_CLOEXEC);
    for (rewinddir(descriptors), status = 0; readdir(descriptors);)
        status++;
    MUST(status >= 20 && !closedir(descriptors));
    MUST(!fchdir(directory) && read(zero, bytes, 10) == 10 && !bytes[0]);
    MUST(fcntl(pipes[0], F_GETPIPE_SZ) == 1 << 17);
    MUST(epoll_wait(epoll, &got, 1, 1000) == 1 && got.data.u64 == event.data.u64);
    MUST(read(pipes[0], bytes, 10) == 5 && !memcmp(bytes, "hello", 5) && read(pipes[0], bytes, 10) < 0 && errno == EAGAIN);
    MUST(write(pipes[1], "again", 5) == 5 && epoll_wait(epoll, &got, 1, 1000) == 1 && read(pipes[0], bytes, 10) == 5);
    for (int i = 0; i < 5; i++)
        MUST(read(counter, &count, 8) == 8 && count == 1);
    struct pollfd empty = {counter, POLLIN, 0}, expires = {timer, POLLIN, 0};
    MUST(poll(&empty, 1, 0) == 0);
    MUST(poll(&expires, 1, 5000) == 1 && read(timer, &count, 8) == 8 && count == 1);
    MUST(!timerfd_gettime(timer, &left) && !left.it_value.tv_nsec);
    MUST(read(signal, &signal_info, sizeof signal_info) == sizeof signal_info && signal_info.ssi_signo == SIGUSR2);
    MUST(accepts(tcp, (struct sockaddr *)&tcp_name, sizeof tcp_name, AF_INET));
    MUST(accepts(local, (struct sockaddr *)&unix_name, sizeof unix_name, AF_UNIX));
    MUST(read(pair[1], bytes, 20) == 6 && !memcmp(bytes, "to one", 6) && read(pair[1], bytes, 20) == 0);
    MUST(read(pair[0], bytes, 20) == 7 && !memcmp(bytes, "to zero", 7) && read(pair[0], bytes, 20) < 0 && errno == EAGAIN);
    MUST(write(pair[1], "more", 4) == 4 && read(pair[0], bytes, 20) == 4 && send(pair[0], "x", 1, MSG_NOSIGNAL) < 0 && errno == EPIPE);
    MUST(write(messages[1], "message", 7) == 7 && read(messages[0], bytes, 20) == 7 && fcntl(messages[0], F_GETFD) == FD_CLOEXEC);
    MUST(!strcmp(shared + 4000, "shared memory"));
    printf("kept\n");
    return 0;
}
