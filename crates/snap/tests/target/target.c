// The program whose memory the tests follow: it does what it is told on standard input, or things at random.
//
//   s NR A0 .. A5      a system call; answers its result, or minus errno
//   w ADDR LEN STEP V  writes V + n at ADDR + n * STEP
//   r ADDR             answers the byte there, or -1 if touching it is a signal
//   f                  forks; the child takes the next commands, until q
//   d ADDR PAGES N     writes N random pages of them each millisecond, for ever
//   z SEED             does things at random for ever
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define PAGE 4096ul
#define GUARD_INSTALL 102
#define GUARD_REMOVE 103

static sigjmp_buf back;
static void caught(int sig) { (void)sig; siglongjmp(back, 1); }

static uint64_t state;
static uint64_t rnd(uint64_t below) {
    state ^= state << 13, state ^= state >> 7, state ^= state << 17;
    return below ? state % below : 0;
}

enum kind { ANON, HUGE_PAGES, RESERVATION, OF_FILE, SHARED, KINDS };
struct slot { char *at; size_t pages; enum kind kind; } slots[24];
static int file;
static char *spare = (char *)0x600000000000;

static void fill(char *from, size_t pages) {
    // Some pages of the range, a few bytes of each.
    for (size_t i = 0; i < pages; i++)
        if (rnd(3)) *(volatile uint64_t *)(from + i * PAGE + rnd(500) * 8) = rnd(0) | 1;
}

static void map(struct slot *s, char *where) {
    s->kind = rnd(KINDS);
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | (where ? MAP_FIXED : 0), prot = PROT_READ | PROT_WRITE, fd = -1;
    size_t pages = 1 + rnd(64);
    if (where) pages = s->pages;
    else if (s->kind == HUGE_PAGES) pages = 1536;
    else if (s->kind == RESERVATION) pages = 1 << 16;
    else if (s->kind == ANON && !rnd(4)) pages = 20000; // more than one portion
    if (s->kind == RESERVATION) flags |= MAP_NORESERVE, prot = PROT_NONE;
    if (s->kind == OF_FILE) flags &= ~MAP_ANONYMOUS, fd = file;
    if (s->kind == OF_FILE && pages > 64 && !where) pages = 64;
    if (s->kind == SHARED) flags = (flags & ~MAP_PRIVATE) | MAP_SHARED;
    if (where && pages > 64 && (s->kind == OF_FILE || s->kind == SHARED)) s->kind = ANON, flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, fd = -1;
    char *p = mmap(where, pages * PAGE, prot, flags, fd, 0);
    if (p == MAP_FAILED) { s->at = 0; return; }
    s->at = p, s->pages = pages;
    if (s->kind == HUGE_PAGES) madvise(p, pages * PAGE, MADV_HUGEPAGE);
}

static void deep(int levels) {
    volatile char frame[16384];
    for (size_t i = 0; i < sizeof frame; i += 512) frame[i] = rnd(0);
    if (levels) deep(levels - 1);
    frame[1] = frame[0];
}

// One thing at random.
static void step(void) {
    struct slot *s = &slots[rnd(sizeof slots / sizeof *slots)];
    if (!s->at) { map(s, 0); if (!s->at) return; }
    size_t most = s->kind == OF_FILE ? 64 : s->pages;
    if (most > s->pages) most = s->pages;
    size_t first = rnd(most), count = 1 + rnd(most - first);
    if (count > 128 && rnd(20)) count = 1 + rnd(128);
    char *at = s->at + first * PAGE;
    size_t len = count * PAGE;
    switch (rnd(22)) {
    case 0: madvise(at, len, MADV_DONTNEED); break;
    case 1: madvise(at, len, GUARD_REMOVE); mprotect(at, len, PROT_READ | PROT_WRITE); madvise(at, len, MADV_DONTNEED); fill(at, count); break;
    case 2: // shrinks or grows, where it is or elsewhere
        if (s->kind != OF_FILE) {
            size_t pages = s->kind >= HUGE_PAGES ? s->pages : 1 + rnd(96);
            char *p = mremap(s->at, s->pages * PAGE, pages * PAGE, MREMAP_MAYMOVE);
            if (p != MAP_FAILED) s->at = p, s->pages = pages;
        }
        break;
    case 3: { // moves
        char *p = mremap(s->at, s->pages * PAGE, s->pages * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, spare);
        if (p != MAP_FAILED) s->at = p;
        else munmap(s->at, s->pages * PAGE), munmap(spare, s->pages * PAGE), s->at = 0; // of several mappings some may have moved
        spare += (s->pages + 128) * PAGE; // room to grow there without meeting the next one
        if (spare > (char *)0x650000000000) spare = (char *)0x600000000000;
        break;
    }
    case 4: munmap(s->at, s->pages * PAGE); map(s, s->at); break;
    case 5: munmap(s->at, s->pages * PAGE); s->at = 0; break;
    case 6: mprotect(at, len, rnd(2) ? PROT_NONE : PROT_READ); break;
    case 7: { // the heap's end
        char *end = (char *)syscall(SYS_brk, 0), *to = end + ((long)rnd(41) - 20) * (long)PAGE;
        static char *lowest;
        if (!lowest) lowest = end;
        if (to < lowest) to = lowest;
        if ((char *)syscall(SYS_brk, to) == to && to > end) fill(end, (to - end) / PAGE);
        break;
    }
    case 8: { // a child that writes to its own copy, for a while
        static pid_t last;
        if (last) kill(last, SIGKILL), waitpid(last, 0, 0);
        last = fork();
        if (!last) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            for (int i = 0; i < 300; i++) {
                struct slot *mine = &slots[rnd(sizeof slots / sizeof *slots)];
                if (mine->at && mine->kind == ANON && mine->pages <= 96) { mprotect(mine->at, mine->pages * PAGE, PROT_READ | PROT_WRITE); fill(mine->at, mine->pages); }
                usleep(100);
            }
            _exit(0);
        }
        break;
    }
    case 9: if (s->kind == SHARED) madvise(at, len, MADV_REMOVE); else madvise(at, len, MADV_FREE); break;
    case 10: deep(rnd(40)); break;
    case 11: { // only looks: pages of zeros
        madvise(at, len, GUARD_REMOVE);
        mprotect(at, len, PROT_READ);
        for (size_t i = 0; i < count; i++) (void)*(volatile char *)(at + i * PAGE);
        break;
    }
    case 12: madvise(at, len, rnd(2) ? GUARD_INSTALL : GUARD_REMOVE); break;
    case 13: madvise(at, len, MADV_PAGEOUT); break;
    case 14: // writes through another mapping of the same shared memory
        if (s->kind == SHARED) {
            madvise(s->at, s->pages * PAGE, GUARD_REMOVE);
            char *twin = mremap(at, 0, len, MREMAP_MAYMOVE);
            if (twin != MAP_FAILED) { mprotect(twin, len, PROT_READ | PROT_WRITE); fill(twin, count); munmap(twin, len); }
        }
        break;
    case 15: madvise(at, len, MADV_COLD); break;
    case 16: mmap(at, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0); if (rnd(2)) fill(at, count); break;
    default:
        madvise(at, len, GUARD_REMOVE);
        mprotect(at, len, PROT_READ | PROT_WRITE);
        fill(at, count);
    }
}

int main(void) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    file = memfd_create("content", 0);
    for (int i = 0; i < 1 << 16; i++) if (write(file, &i, sizeof i) < 0) return 1;
    struct sigaction act = {.sa_handler = caught, .sa_flags = SA_NODEFER};
    sigaction(SIGSEGV, &act, 0), sigaction(SIGBUS, &act, 0);
    static char line[512];
    static unsigned long a[7];
    setvbuf(stdin, 0, _IONBF, 0); // so that a child takes exactly what is left
    while (fgets(line, sizeof line, stdin)) {
        memset(a, 0, sizeof a);
        sscanf(line + 1, "%li %li %li %li %li %li %li", &a[0], &a[1], &a[2], &a[3], &a[4], &a[5], &a[6]);
        long answer = 0;
        switch (line[0]) {
        case 's': answer = syscall(a[0], a[1], a[2], a[3], a[4], a[5], a[6]); if (answer == -1) answer = -errno; break;
        case 'w': for (unsigned long n = 0; n * a[2] < a[1]; n++) *(volatile unsigned char *)(a[0] + n * a[2]) = a[3] + n; break;
        case 'r': answer = sigsetjmp(back, 1) ? -1 : *(volatile unsigned char *)a[0]; break;
        case 'f': { pid_t child = fork(); if (child) { waitpid(child, 0, 0); } else prctl(PR_SET_PDEATHSIG, SIGKILL); break; }
        case 'q': _exit(0);
        case 'd': state = 88172645463325252ull; for (;;) { for (unsigned long n = 0; n < a[2]; n++) ++*(volatile char *)(a[0] + rnd(a[1]) * PAGE); usleep(1000); }
        case 'z': signal(SIGSEGV, SIG_DFL); signal(SIGBUS, SIG_DFL); state = a[0] * 2654435761u + 88172645463325252ull; for (;;) step();
        }
        printf("%ld\n", answer);
        fflush(stdout);
    }
    return 0;
}
