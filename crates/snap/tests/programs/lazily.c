/*
 * lazily.c - memory of which every page is known; looks at all of it when a file appears, in ways that a lazy restart may get wrong.
 *
 *     lazily MB MODE DIR     says "ready ADDRESS"; goes on when DIR/go-on is there
 *
 *     look    looks at every page
 *     all     system calls, children, dropped, moved and unmapped memory, then the rest
 *     steps   page after page, by itself, by system calls (to DIR/raw) and in slow children; DIR/log says how far it came, or WRONG
 *     bus     looks at every page, and counts the SIGBUS
 *
 * Prints "kept" at the end, or what was wrong.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define PAGE 4096ul
#define WORDS (PAGE / 8)

static uint64_t *memory;
static size_t pages;
static int to_log = -1;

static uint64_t word(size_t page, size_t at)
{
    return (page * 0x9e3779b97f4a7c15ull + at * 0xbf58476d1ce4e5b9ull) | 1;
}

static void wrong(const char *what, size_t page)
{
    if (to_log >= 0)
        dprintf(to_log, "WRONG: %s, page %zu\n", what, page);
    printf("WRONG: %s, page %zu\n", what, page);
    fflush(stdout);
    _exit(1);
}

/* Page `page` of the pattern is at `at`. */
static void must_be(const uint64_t *at, size_t page, const char *what)
{
    for (size_t n = 0; n < WORDS; n++)
        if (at[n] != word(page, n))
            wrong(what, page);
}

static const uint64_t *page_at(size_t page)
{
    return memory + page * WORDS;
}

static void must_end_well(pid_t child)
{
    int status;
    if (waitpid(child, &status, 0) != child || status)
        wrong("a child's end", status);
}

static void all(void)
{
    size_t eighth = pages / 8;
    /* 0: read by the kernel, from pages that were never touched. */
    int ends[2];
    static uint64_t copy[WORDS];
    if (pipe(ends))
        wrong("pipe", 0);
    for (size_t page = 0; page < eighth; page += 3) {
        if (write(ends[1], page_at(page), PAGE) != (ssize_t)PAGE || read(ends[0], copy, PAGE) != (ssize_t)PAGE)
            wrong("write", page);
        must_be(copy, page, "written to a pipe");
    }
    /* 1: children, and theirs. */
    for (int n = 0; n < 6; n++) {
        pid_t child = fork();
        if (child == 0) {
            pid_t grandchild = n % 2 ? fork() : -1;
            for (size_t page = eighth + n; page < 2 * eighth; page += 2)
                must_be(page_at(page), page, "seen by a child");
            if (grandchild > 0)
                must_end_well(grandchild);
            _exit(0);
        }
        must_be(page_at(eighth + n * 5), eighth + n * 5, "after a fork");
        must_end_well(child);
    }
    /* 2: dropped, in part. */
    if (madvise(memory + 2 * eighth * WORDS, eighth / 2 * PAGE, MADV_DONTNEED))
        wrong("madvise", 0);
    for (size_t page = 2 * eighth; page < 3 * eighth; page++) {
        if (page >= 2 * eighth + eighth / 2)
            must_be(page_at(page), page, "beside what was dropped");
        else
            for (size_t n = 0; n < WORDS; n++)
                if (page_at(page)[n])
                    wrong("dropped", page);
    }
    /* 3: moved, and grown. */
    uint64_t *moved = mremap(memory + 3 * eighth * WORDS, eighth * PAGE, 2 * eighth * PAGE, MREMAP_MAYMOVE);
    if (moved == MAP_FAILED)
        wrong("mremap", 0);
    for (size_t page = 0; page < eighth; page++)
        must_be(moved + page * WORDS, 3 * eighth + page, "moved");
    for (size_t n = eighth * WORDS; n < 2 * eighth * WORDS; n += 100)
        if (moved[n])
            wrong("grown", n / WORDS);
    /* 4: unmapped, and something else there. */
    uint64_t *there = memory + 4 * eighth * WORDS;
    if (munmap(there, eighth * PAGE)
        || mmap(there, eighth * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) != there)
        wrong("munmap", 0);
    for (size_t n = 0; n < eighth * WORDS; n += 50)
        if (there[n])
            wrong("mapped anew", n / WORDS);
    /* 5: written before it is read; by the kernel, too. */
    for (size_t page = 5 * eighth; page < 6 * eighth; page++) {
        if (page % 2)
            memory[page * WORDS + 7] = word(page, 7);
        else if (write(ends[1], (const char[8]){0}, 8) != 8 || read(ends[0], memory + page * WORDS, 8) != 8)
            wrong("read", page);
        else
            memory[page * WORDS] = word(page, 0);
        must_be(page_at(page), page, "written first");
    }
    for (size_t page = 6 * eighth; page < pages; page++)
        must_be(page_at(page), page, "of the rest");
}

static void steps(const char *dir, int raw)
{
    int children = 0;
    (void)dir;
    for (size_t step = 0; step < pages; step++) {
        size_t page = step * 7919 % pages;
        if (step % 4 == 0) {
            if (write(raw, page_at(page), PAGE) != (ssize_t)PAGE)
                wrong("write", page);
        } else {
            must_be(page_at(page), page, "seen");
        }
        if (step % 512 == 0) {
            dprintf(to_log, "%zu\n", step);
            if (fork() == 0) {
                for (size_t n = 1; n < 60; n++) {
                    size_t other = (step + n * 271) % pages;
                    must_be(page_at(other), other, "seen by a child");
                    usleep(500);
                }
                _exit(0);
            }
            children++;
        }
        while (children && waitpid(-1, NULL, children > 8 ? 0 : WNOHANG) > 0)
            children--;
    }
    while (wait(NULL) > 0)
        ;
    dprintf(to_log, "kept\n");
}

static sigjmp_buf back;
static void on_bus(int signal)
{
    siglongjmp(back, signal);
}

int main(int argc, char **argv)
{
    static char name[4096];
    if (argc != 4)
        return 2;
    pages = strtoul(argv[1], NULL, 10) * 256;
    memory = mmap(NULL, pages * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED)
        return 2;
    for (size_t page = 0; page < pages; page++)
        for (size_t n = 0; n < WORDS; n++)
            memory[page * WORDS + n] = word(page, n);
    snprintf(name, sizeof name, "%s/log", argv[3]);
    to_log = open(name, O_WRONLY | O_CREAT | O_APPEND, 0600);
    snprintf(name, sizeof name, "%s/raw", argv[3]);
    int raw = open(name, O_WRONLY | O_CREAT | O_APPEND, 0600);
    snprintf(name, sizeof name, "%s/go-on", argv[3]);
    printf("ready %lx\n", (unsigned long)memory);
    fflush(stdout);
    while (access(name, F_OK))
        usleep(1000);

    if (!strcmp(argv[2], "all")) {
        all();
    } else if (!strcmp(argv[2], "steps")) {
        steps(argv[3], raw);
    } else if (!strcmp(argv[2], "bus")) {
        volatile size_t count = 0, page;
        signal(SIGBUS, on_bus);
        for (page = 0; page < pages; page++) {
            if (sigsetjmp(back, 1))
                count++;
            else
                must_be(page_at(page), page, "seen");
        }
        printf("bus %zu\n", count);
    } else {
        for (size_t page = 0; page < pages; page++)
            must_be(page_at(page), page, "seen");
    }
    printf("kept\n");
    return 0;
}
