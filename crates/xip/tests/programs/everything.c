/* Prints what a program knows of itself, in words that are the same in each run: the output of a split one must be that of a whole. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <elf.h>
#include <fcntl.h>
#include <link.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

/* Pages of text of its own for the smallest of programs. */
__asm__(".text\n.skip 16384, 0x90\n");

static int constructed;
static __thread int per_thread = 5;
static const char *const *pointers = (const char *const[]){"one", "two", "three"};

__attribute__((constructor)) static void construct(void)
{
    constructed = 1;
}

__attribute__((destructor)) static void destruct(void)
{
    printf("destroyed\n");
    fflush(stdout);
}

static int answer_a(void)
{
    return 1;
}

static int (*resolve_answer(void))(void)
{
    return answer_a;
}

int answer(void) __attribute__((ifunc("resolve_answer")));

static void *work(void *unused)
{
    per_thread += 10;
    printf("thread %d\n", per_thread);
    return &constructed;
}

static jmp_buf back;

static void on_signal(int number)
{
    siglongjmp(back, number);
}

static unsigned long base_in_proc(void)
{
    Elf64_auxv_t entry;
    int fd = open("/proc/self/auxv", O_RDONLY);
    unsigned long base = 1;

    while (read(fd, &entry, sizeof entry) == sizeof entry && entry.a_type != AT_NULL)
        if (entry.a_type == AT_BASE)
            base = entry.a_un.a_val;
    close(fd);
    return base;
}

static int show_object(struct dl_phdr_info *info, size_t size, void *unused)
{
    int text = 0;

    for (int i = 0; i < info->dlpi_phnum; i++)
        text += info->dlpi_phdr[i].p_type == PT_LOAD && info->dlpi_phdr[i].p_flags & PF_X;
    printf("object %s: %d headers, %d text\n", info->dlpi_name, info->dlpi_phnum, text);
    if (strstr(info->dlpi_name, "/ld-"))
        printf("base %d\n", info->dlpi_addr == getauxval(AT_BASE));
    return 0;
}

static int compare(const void *a, const void *b)
{
    return *(const int *)a - *(const int *)b;
}

int main(int argc, char **argv)
{
    int numbers[] = {3, 1, 2};
    pthread_t thread;

    for (int i = 0; i < argc; i++)
        printf("argument <%s>\n", argv[i]);
    for (char **at = environ; *at; at++)
        printf("environment %s\n", *at);
    printf("constructed %d, answer %d, pointers %s %s\n", constructed, answer(), pointers[0], pointers[2]);
    printf("entry %d, secure %lu, page %lu\n", getauxval(AT_ENTRY) != 0, getauxval(AT_SECURE), getauxval(AT_PAGESZ));
    printf("base is none %d, in proc %d\n", getauxval(AT_BASE) == 0, base_in_proc() == getauxval(AT_BASE));
    dl_iterate_phdr(show_object, NULL);
    pthread_create(&thread, NULL, work, NULL);
    pthread_join(thread, NULL);
    printf("main thread %d\n", per_thread);
    qsort(numbers, 3, sizeof *numbers, compare);
    printf("sorted %d %d %d\n", numbers[0], numbers[1], numbers[2]);
    signal(SIGSEGV, on_signal);
    if (sigsetjmp(back, 1) == 0)
        *(volatile int *)main = 0;
    else
        printf("text is not to be written\n");
#ifndef STATIC
    void *guest = dlopen("libguest.so", RTLD_NOW);
    int (*call)(void) = guest ? dlsym(guest, "guest") : NULL;
    printf("guest %d\n", call ? call() : -1);
#endif
    fflush(stdout);
    pid_t child = fork();
    if (child == 0)
        _exit(answer() + 2);
    int status;
    waitpid(child, &status, 0);
    printf("child %d\n", WEXITSTATUS(status));
    void *heap = malloc(1 << 20), *more = malloc(100);
    memset(heap, 1, 1 << 20);
    free(heap);
    free(more);
    fprintf(stderr, "done\n");
    return 7;
}
