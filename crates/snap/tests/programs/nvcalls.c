/*
 * nvcalls.c - system calls that a process in mode nv makes otherwise, or as ever.
 *
 *     nvcalls FILE     says "ready", waits for FILE to appear, makes them, and says "as described" or what was not
 */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

static void must(int is, const char *what)
{
    if (!is) {
        printf("nvcalls: %s (errno %d: %s)\n", what, errno, strerror(errno));
        fflush(stdout);
        _exit(1);
    }
}

static void *nothing(void *argument)
{
    return argument;
}

int main(int argc, char **argv)
{
    size_t page = 4096, len = 64 * page;
    char *memory = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    char *locked = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    char *brk_at = sbrk(0);
    must(argc == 2 && memory != MAP_FAILED && locked != MAP_FAILED && sbrk(1 << 20) == brk_at, "memory");
    memset(memory, 1, len), memset(locked, 2, len), memset(brk_at, 3, 1 << 20);
    printf("ready\n");
    fflush(stdout);
    while (access(argv[1], F_OK))
        usleep(1000);

    must(fork() == -1 && errno == EAGAIN, "fork is not refused");
    must(syscall(SYS_fork) == -1 && errno == EAGAIN, "the call fork is not refused");
    pid_t child;
    char *words[] = {"true", NULL};
    int status;
    must(!posix_spawnp(&child, "true", NULL, NULL, words, environ), "posix_spawn");
    must(waitpid(child, &status, 0) == child && !status, "what it started");
    /* A signal may interrupt a fork here (nv/mod.rs): the end of the first child, the making of the second. */
    for (int tries = 0; tries < 30; tries++)
        if (!(status = system("true; (true) | cat")))
            break;
    must(!status, "a shell cannot make children of its own");
    pthread_t thread;
    must(!pthread_create(&thread, NULL, nothing, NULL) && !pthread_join(thread, NULL), "a thread");

    must(!madvise(memory + page, page, MADV_DONTNEED), "MADV_DONTNEED");
    must(memory[0] == 1 && !memory[page] && !memory[2 * page - 1] && memory[2 * page] == 1, "MADV_DONTNEED leaves content");
    must(!madvise(memory + 3 * page, page, MADV_FREE), "MADV_FREE");
    must(!memory[3 * page] || memory[3 * page] == 1, "MADV_FREE makes content");
    memory[3 * page] = 7;
    must(memory[3 * page] == 7 && memory[4 * page] == 1, "memory after MADV_FREE");
    must(madvise(memory + 1, page, MADV_DONTNEED) == -1 && errno == EINVAL, "MADV_DONTNEED of half a page");
    must(madvise(memory, page, MADV_REMOVE) == -1 && errno == EINVAL && memory[0] == 1, "MADV_REMOVE");
    must(!mlock(locked, page) && madvise(locked, page, MADV_DONTNEED) == -1 && errno == EINVAL, "MADV_DONTNEED of what is locked");
    must(locked[0] == 2, "what is locked is gone");

    must(mremap(memory, len, 2 * len, MREMAP_MAYMOVE) == MAP_FAILED && errno == ENOMEM, "mremap grows it");
    must(mremap(memory, len, len / 2, 0) == memory, "mremap does not shrink it");
    char *more = malloc(len * 8);
    memset(more, 5, len * 8);
    more = realloc(more, len * 32);
    must(more && more[0] == 5 && more[len * 8 - 1] == 5, "realloc");
    char *top = sbrk(0);
    must(sbrk(1 << 20) == top && !top[0] && !top[(1 << 20) - 1] && brk_at[0] == 3, "brk");
    top[0] = 9;
    must(sbrk(-(1 << 20)) == top + (1 << 20) && brk_at[(1 << 20) - 1] == 3, "brk back");
    must(sbrk(1 << 20) == top && !top[0], "brk again");
    must(!mprotect(memory, page, PROT_READ) && !mprotect(memory, page, PROT_READ | PROT_WRITE) && memory[0] == 1, "mprotect");
    must(!munmap(memory, len / 2), "munmap");
    char *again = mmap(memory, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    must(again == memory && !again[0], "memory in its place is not new");
    must(fork() == -1 && errno == EAGAIN, "fork is not refused at the end");
    printf("as described\n");
    return 0;
}
