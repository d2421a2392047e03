/*
 * nameless.c - has files without a name, of many shapes, and leaves them alone or not.
 *
 *     nameless hole             a memfd and a removed file of 4 TiB, nothing but holes and a page at their ends
 *     nameless endless          a memfd as long as a file can be
 *     nameless rests MIB        a memfd of so many MiB, written once
 *     nameless written MIB      ... and written all the time
 *     nameless shared MIB       ... and mapped by another process, which is no child
 *     nameless pieces COUNT     a memfd with a page in each 64 KiB
 *     nameless grows MIB        a memfd that grows as fast as it can, to so many MiB, and begins anew
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define PAGE 4096L

static char page[PAGE];

static void put(int fd, long at)
{
    memcpy(page, &at, sizeof at);
    if (pwrite(fd, page, PAGE, at) != PAGE)
        exit(2);
}

static void ready(void)
{
    puts("ready");
    fflush(stdout);
}

int main(int count, char **args)
{
    const char *what = count > 1 ? args[1] : "";
    long bytes = count > 2 ? atol(args[2]) << 20 : 0;
    int fd = memfd_create("content", 0);
    memset(page, 7, PAGE);
    if (fd < 0)
        return 2;
    if (!strcmp(what, "hole")) {
        char name[] = "/tmp/nameless-XXXXXX";
        int removed = mkstemp(name);
        if (removed < 0 || unlink(name) || ftruncate(fd, 1L << 42) || ftruncate(removed, 1L << 42))
            return 2;
        put(fd, (1L << 42) - PAGE), put(removed, (1L << 42) - PAGE);
    } else if (!strcmp(what, "endless")) {
        if (ftruncate(fd, LONG_MAX / PAGE * PAGE))
            return 2;
        put(fd, LONG_MAX / PAGE * PAGE - PAGE);
    } else if (!strcmp(what, "pieces")) {
        for (long n = 0; n < bytes >> 20; n++)
            put(fd, n << 16);
    } else if (strcmp(what, "grows")) {
        for (long at = 0; at < bytes; at += PAGE)
            put(fd, at);
    }
    if (!strcmp(what, "shared")) {
        int mapped_it[2];
        if (pipe(mapped_it))
            return 2;
        pid_t child = fork();
        if (child == 0) {
            pid_t self = getpid(), parent = getppid();
            if (fork() != 0)
                _exit(0);
            char *mapped = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
            /* The first store to a page changes the file's times, and later ones do not. */
            for (long n = 0; n < 16; n++)
                mapped[n * PAGE]++;
            if (write(mapped_it[1], "", 1) != 1)
                _exit(2);
            close(fd), close(1), close(mapped_it[0]), close(mapped_it[1]);
            /* Ends soon after the first one has. */
            for (long n = 0; kill(parent, 0) == 0 && self; n++, usleep(1000))
                mapped[n * 4097 % (16 * PAGE)]++;
            _exit(0);
        }
        waitpid(child, NULL, 0);
        char byte;
        close(mapped_it[1]);
        if (read(mapped_it[0], &byte, 1) != 1)
            return 2;
        close(mapped_it[0]);
        /* What was written a moment ago may still be written. */
        usleep(200000);
    }
    ready();
    if (!strcmp(what, "written"))
        for (long n = 0;; n++, usleep(100))
            put(fd, n * 31 % (bytes / PAGE) * PAGE);
    if (!strcmp(what, "grows"))
        for (;; ftruncate(fd, 0) ? exit(2) : (void)0)
            for (long at = 0; at < bytes; at += PAGE)
                put(fd, at);
    for (;;)
        pause();
}
