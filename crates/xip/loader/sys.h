/*
 * sys.h: the few system calls and string functions that the loader and the audit object need: neither has a C library.
 *
 * What must hold: nothing here has state, and nothing needs a relocation. A call returns what the kernel returns: the negated error
 * number when it failed, which `failed` tells.
 */
#ifndef TOWA_XIP_SYS_H
#define TOWA_XIP_SYS_H

#include <asm/stat.h>
#include <asm/unistd.h>
#include <elf.h>
#include <linux/errno.h>
#include <linux/fcntl.h>
#include <linux/mman.h>
#include <linux/prctl.h>
#include <stddef.h>
#include <stdint.h>

#if defined(__x86_64__)
#include "arch/x86_64.h"
#else
#error "the loader of split programs is not written for this machine: see loader/arch"
#endif

#define FILE_TYPE_MASK 0170000
#define FILE_TYPE_REGULAR 0100000
#define WRITABLE_BY_OTHERS 0022
#define MAY_READ 4

static inline int failed(long result)
{
    return (unsigned long)result >= -4095UL;
}

/* O_NONBLOCK: a named pipe in the place of a file must not stop the program's start. */
static inline long sys_open(const char *path)
{
    return arch_syscall(__NR_openat, AT_FDCWD, (long)path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY, 0, 0, 0);
}

static inline void sys_close(long fd)
{
    arch_syscall(__NR_close, fd, 0, 0, 0, 0, 0);
}

static inline long sys_readable(const char *path)
{
    return arch_syscall(__NR_faccessat, AT_FDCWD, (long)path, MAY_READ, 0, 0, 0);
}

static inline long sys_fstat(long fd, struct stat *status)
{
    return arch_syscall(__NR_fstat, fd, (long)status, 0, 0, 0, 0);
}

static inline long sys_stat(const char *path, struct stat *status)
{
    return arch_syscall(__NR_newfstatat, AT_FDCWD, (long)path, (long)status, 0, 0, 0);
}

static inline long sys_pread(long fd, void *to, size_t len, uint64_t offset)
{
    return arch_syscall(__NR_pread64, fd, (long)to, (long)len, (long)offset, 0, 0);
}

static inline long sys_write(long fd, const void *from, size_t len)
{
    return arch_syscall(__NR_write, fd, (long)from, (long)len, 0, 0, 0);
}

static inline long sys_mmap(uintptr_t at, size_t len, int prot, int flags, long fd, uint64_t offset)
{
    return arch_syscall(__NR_mmap, (long)at, (long)len, prot, flags, fd, (long)offset);
}

static inline long sys_munmap(uintptr_t at, size_t len)
{
    return arch_syscall(__NR_munmap, (long)at, (long)len, 0, 0, 0, 0);
}

static inline long sys_brk(void)
{
    return arch_syscall(__NR_brk, 0, 0, 0, 0, 0, 0);
}

static inline long sys_prctl_mm_map(const struct prctl_mm_map *map)
{
    return arch_syscall(__NR_prctl, PR_SET_MM, PR_SET_MM_MAP, (long)map, sizeof *map, 0, 0);
}

static inline _Noreturn void sys_exit(int status)
{
    for (;;)
        arch_syscall(__NR_exit_group, status, 0, 0, 0, 0, 0);
}

/* A compiler may call these three for a loop or an assignment of its own. */
#define FOR_THE_COMPILER __attribute__((visibility("hidden"), unused))

FOR_THE_COMPILER void *memcpy(void *to, const void *from, size_t len)
{
    for (size_t i = 0; i < len; i++)
        ((char *)to)[i] = ((const char *)from)[i];
    return to;
}

FOR_THE_COMPILER void *memset(void *to, int byte, size_t len)
{
    for (size_t i = 0; i < len; i++)
        ((char *)to)[i] = (char)byte;
    return to;
}

FOR_THE_COMPILER int memcmp(const void *a, const void *b, size_t len)
{
    const unsigned char *x = a, *y = b;

    for (size_t i = 0; i < len; i++)
        if (x[i] != y[i])
            return x[i] < y[i] ? -1 : 1;
    return 0;
}

static inline size_t length_of(const char *string)
{
    size_t len = 0;

    while (string[len])
        len++;
    return len;
}

static inline int same_string(const char *a, const char *b)
{
    while (*a && *a == *b) {
        a++;
        b++;
    }
    return *a == *b;
}

/* What of a string comes behind these words, with which it begins; NULL if it does not. */
static inline const char *behind(const char *string, const char *words)
{
    while (*words && *string == *words) {
        string++;
        words++;
    }
    return *words ? NULL : string;
}

/* Text put together in a buffer; what does not fit is left out, and there is a zero byte behind it always. */
struct words {
    char *text;
    size_t len;
    size_t room;
};

static inline void words_byte(struct words *to, char byte)
{
    if (to->len + 1 < to->room)
        to->text[to->len++] = byte;
    to->text[to->len] = 0;
}

static inline void words_add(struct words *to, const char *string, size_t len)
{
    for (size_t i = 0; i < len; i++)
        words_byte(to, string[i]);
}

static inline void words_string(struct words *to, const char *string)
{
    words_add(to, string, length_of(string));
}

/* A name that came from elsewhere: what would end the line, or make a terminal do something, is not written as it is. */
static inline void words_name(struct words *to, const char *name)
{
    for (; *name; name++)
        words_byte(to, (unsigned char)*name < ' ' || *name == 0x7f ? '?' : *name);
}

static inline void words_hex(struct words *to, const uint8_t *bytes, size_t len)
{
    for (size_t i = 0; i < 2 * len; i++) {
        unsigned digit = i % 2 ? bytes[i / 2] & 15 : bytes[i / 2] >> 4;
        words_byte(to, (char)(digit < 10 ? '0' + digit : 'a' + digit - 10));
    }
}

static inline void words_number(struct words *to, unsigned long number)
{
    if (number > 9)
        words_number(to, number / 10);
    words_byte(to, (char)('0' + number % 10));
}

#endif
