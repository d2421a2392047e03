/*
 * opens.c - opens one of everything, says which number is what, and waits for its end.
 *
 *     opens DIR [EXTRA]     EXTRA: something that cannot be kept: udp, connected, inotify, fifo, packets, half
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/file.h>
#include <sys/inotify.h>
#include <sys/mman.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/timerfd.h>
#include <sys/un.h>
#include <unistd.h>

static void is(const char *what, int fd)
{
    if (fd < 0) {
        perror(what);
        exit(1);
    }
    printf("%s=%d\n", what, fd);
}

static int tcp_listener(void)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int one = 1, fd = socket(AF_INET, SOCK_STREAM, 0);
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (bind(fd, (struct sockaddr *)&address, sizeof address) || listen(fd, 7))
        return -1;
    return fd;
}

static void extra(const char *what)
{
    int pipes[2];
    if (!strcmp(what, "udp"))
        is("extra", socket(AF_INET, SOCK_DGRAM, 0));
    else if (!strcmp(what, "connected")) {
        struct sockaddr_in address;
        socklen_t len = sizeof address;
        int listener = tcp_listener(), fd = socket(AF_INET, SOCK_STREAM, 0);
        getsockname(listener, (struct sockaddr *)&address, &len);
        is("extra", connect(fd, (struct sockaddr *)&address, len) ? -1 : fd);
    } else if (!strcmp(what, "inotify"))
        is("extra", inotify_init1(0));
    else if (!strcmp(what, "fifo")) {
        mkfifo("fifo", 0600);
        is("extra", open("fifo", O_RDWR));
    } else if (!strcmp(what, "packets"))
        is("extra", pipe2(pipes, O_DIRECT) ? -1 : pipes[1]);
    else if (!strcmp(what, "thread"))
        is("extra", open("/proc/thread-self/stat", O_RDONLY));
    else if (!strcmp(what, "half")) {
        is("extra", pipe(pipes) ? -1 : pipes[0]);
        close(pipes[1]);
    }
}

int main(int argc, char **argv)
{
    struct sockaddr_un name = {.sun_family = AF_UNIX, .sun_path = "listener"};
    struct itimerspec in_an_hour = {{0, 500}, {3600, 0}};
    struct epoll_event event = {.events = EPOLLIN | EPOLLET, .data.u64 = 0x123456789abcdef0};
    sigset_t signals;
    int pipes[2], fd;
    if (argc < 2 || chdir(argv[1]))
        return 2;
    is("appends", fd = open("appended", O_RDWR | O_CREAT | O_APPEND, 0600));
    if (write(fd, "abcdef", 6) != 6 || lseek(fd, 4, SEEK_SET) != 4)
        return 1;
    is("duplicate", dup(fd));
    is("again", open("appended", O_RDONLY | O_CLOEXEC));
    is("locked", fd = open("locked", O_RDWR | O_CREAT, 0600));
    struct flock lock = {.l_type = F_WRLCK, .l_start = 10, .l_len = 5};
    if (fcntl(fd, F_SETLK, &lock) || flock(fd, LOCK_SH))
        return 1;
    is("nameless", fd = open("nameless", O_RDWR | O_CREAT, 0600));
    unlink("nameless");
    is("memfd", memfd_create("here", 0));
    is("directory", open(".", O_RDONLY | O_DIRECTORY));
    is("null", open("/dev/null", O_WRONLY));
    if (pipe2(pipes, O_NONBLOCK))
        return 1;
    is("reads", pipes[0]);
    is("writes", pipes[1]);
    if (write(pipes[1], "hello", 5) != 5 || fcntl(pipes[0], F_SETPIPE_SZ, 1 << 17) != 1 << 17)
        return 1;
    is("event", eventfd(5, EFD_SEMAPHORE));
    is("timer", fd = timerfd_create(CLOCK_MONOTONIC, 0));
    timerfd_settime(fd, 0, &in_an_hour, NULL);
    sigemptyset(&signals);
    sigaddset(&signals, SIGUSR2);
    is("signal", signalfd(-1, &signals, 0));
    is("epoll", fd = epoll_create1(0));
    if (epoll_ctl(fd, EPOLL_CTL_ADD, pipes[0], &event))
        return 1;
    is("tcp", tcp_listener());
    is("unix", fd = socket(AF_UNIX, SOCK_STREAM, 0));
    if (bind(fd, (struct sockaddr *)&name, sizeof name) || listen(fd, 3))
        return 1;
    if (argc > 2)
        extra(argv[2]);
    printf("ready\n");
    fflush(stdout);
    pause();
    return 0;
}
