/*
 * process.h: what the kernel put on the stack for the program, and the kernel's own copy of it.
 *
 *   stack     │ argc │ argv … 0 │ environment … 0 │ auxiliary vector … AT_NULL │ strings │
 *
 * What must hold: of all this only the value of AT_BASE is ever changed: it must tell where the dynamic loader is, not where we are.
 * Debuggers read it from /proc/PID/auxv, which is the kernel's copy.
 */
#ifndef TOWA_XIP_PROCESS_H
#define TOWA_XIP_PROCESS_H

#include "overlay.h"

struct start {
    char **environment;
    Elf64_auxv_t *auxv;
    size_t auxv_count;
    Elf64_auxv_t *base;
    uintptr_t headers;
    size_t header_count;
    size_t header_size;
    uintptr_t entry;
    uintptr_t page_size;
    uintptr_t secure;
    const char *name;
};

static void start_auxv(struct start *start)
{
    Elf64_auxv_t *at;

    for (at = start->auxv; at->a_type != AT_NULL; at++) {
        uintptr_t value = at->a_un.a_val;

        if (at->a_type == AT_PHDR)
            start->headers = value;
        else if (at->a_type == AT_PHNUM)
            start->header_count = value;
        else if (at->a_type == AT_PHENT)
            start->header_size = value;
        else if (at->a_type == AT_ENTRY)
            start->entry = value;
        else if (at->a_type == AT_PAGESZ)
            start->page_size = value;
        else if (at->a_type == AT_SECURE)
            start->secure = value;
        else if (at->a_type == AT_EXECFN)
            start->name = (const char *)value;
        else if (at->a_type == AT_BASE)
            start->base = at;
    }
    start->auxv_count = (size_t)(at - start->auxv) + 1;
}

static void start_read(struct start *start, uintptr_t *stack)
{
    uintptr_t *at = stack + 1 + stack[0] + 1;

    memset(start, 0, sizeof *start);
    start->name = "?";
    start->environment = (char **)at;
    while (*at)
        at++;
    start->auxv = (Elf64_auxv_t *)(at + 1);
    start_auxv(start);
}

/* The value of a setting (`NAME=`) of the environment; NULL if there is none but empty ones. A set-id program does not listen to it. */
static const char *start_value(const struct start *start, const char *setting)
{
    if (start->secure)
        return NULL;
    for (char **at = start->environment; *at; at++) {
        const char *value = behind(*at, setting);

        if (value && *value)
            return value;
    }
    return NULL;
}

/* Fields of /proc/PID/stat, numbered as in proc(5). */
enum {
    STAT_STATE = 3,
    STAT_START_CODE = 26,
    STAT_END_CODE = 27,
    STAT_START_STACK = 28,
    STAT_START_DATA = 45,
    STAT_END_DATA = 46,
    STAT_START_BRK = 47,
    STAT_ARG_START = 48,
    STAT_ARG_END = 49,
    STAT_ENV_START = 50,
    STAT_ENV_END = 51,
    STAT_FIELDS = 52,
};

/* Reads the numbers of /proc/self/stat behind the program's name, which may hold spaces and parentheses itself. */
static int read_stat(uint64_t fields[STAT_FIELDS])
{
    char text[1024];
    long fd = sys_open("/proc/self/stat"), len;
    const char *at, *end;
    unsigned field = STAT_STATE;

    if (failed(fd))
        return 0;
    len = sys_pread(fd, text, sizeof text, 0);
    sys_close(fd);
    if (failed(len))
        return 0;
    end = text + len;
    at = end;
    while (at > text && at[-1] != ')')
        at--;
    for (at++; at < end && field < STAT_FIELDS; at++, field++) {
        fields[field] = 0;
        for (; at < end && *at != ' '; at++)
            if (*at >= '0' && *at <= '9')
                fields[field] = fields[field] * 10 + (uint64_t)(*at - '0');
    }
    return field == STAT_FIELDS;
}

/*
 * Makes /proc/PID/auxv say what the stack says. PR_SET_MM_MAP needs no privilege; where there is no /proc, or the kernel was built
 * without it, debuggers do without.
 */
static void publish_auxv(const struct start *start)
{
    uint64_t fields[STAT_FIELDS];
    struct prctl_mm_map map;

    if (!read_stat(fields))
        return;
    map.start_code = fields[STAT_START_CODE];
    map.end_code = fields[STAT_END_CODE];
    map.start_data = fields[STAT_START_DATA];
    map.end_data = fields[STAT_END_DATA];
    map.start_brk = fields[STAT_START_BRK];
    map.brk = (uint64_t)sys_brk();
    map.start_stack = fields[STAT_START_STACK];
    map.arg_start = fields[STAT_ARG_START];
    map.arg_end = fields[STAT_ARG_END];
    map.env_start = fields[STAT_ENV_START];
    map.env_end = fields[STAT_ENV_END];
    map.auxv = (void *)start->auxv;
    map.auxv_size = (uint32_t)(start->auxv_count * sizeof *start->auxv);
    map.exe_fd = (uint32_t)-1;
    sys_prctl_mm_map(&map);
}

/* Makes AT_BASE tell where ld.so is, or 0 for a static program. Most often it does so already (interp.h). */
static void start_set_base(const struct start *start, uintptr_t base)
{
    if (!start->base || start->base->a_un.a_val == base)
        return;
    start->base->a_un.a_val = base;
    publish_auxv(start);
}

#endif
