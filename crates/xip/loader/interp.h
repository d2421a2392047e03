/*
 * interp.h: maps the program's own dynamic loader (ld.so) as the kernel would have.
 *
 *   file      │ first segment │ text │ rodata │ data           │
 *   memory    │ first segment │ text │ rodata │ data │ 0 0 0 0 0 │ bss: anonymous pages │
 *             └ base                             └ file ends  └ page ends
 *
 * It goes to the very address that the kernel said is its own (AT_BASE, also in /proc/PID/auxv), although that is where the kernel put
 * us: the linker leaves LOADER_HOLE bytes free between our headers, which are at AT_BASE, and our text. So nothing needs to be told to
 * debuggers, who look for ld.so at AT_BASE before our first instruction, and would put breakpoints into our text otherwise.
 *
 * What must hold: the rest of the last page of data is zero up to its end, not only up to the end of the segment: ld.so takes what is
 * left of that page as its first heap. The segments lie within one reservation, at their distances, aligned as they ask.
 */
#ifndef TOWA_XIP_INTERP_H
#define TOWA_XIP_INTERP_H

#include "overlay.h"

/* The dynamic loader; `image.headers` points into `head`. */
struct interp {
    struct image image;
    struct stat status;
    uintptr_t entry;
    union {
        Elf64_Ehdr header;
        uint8_t bytes[HEAD_LEN];
    } head;
};

/* Where the segments begin and end, and the greatest alignment among them. */
struct extent {
    uint64_t low;
    uint64_t high;
    uint64_t align;
};

/* What lies between the start of the loader's image and its text (-Ttext in build.rs). */
#define LOADER_HOLE 0x800000

#define REMEDY_INTERP "install it again: it belongs to the C library that the program was built for"

static int interp_unusable(struct fault *fault, const char *reason)
{
    fault->what = "its dynamic loader cannot be used";
    fault->error = 0;
    fault->reason = reason;
    fault->remedy = REMEDY_INTERP;
    return 0;
}

static int interp_failed(struct fault *fault, const char *what, long error)
{
    fault_error(fault, what, error);
    if (error == ENOENT)
        fault->remedy = REMEDY_INTERP;
    return 0;
}

static int interp_read(struct interp *interp, long fd, struct fault *fault)
{
    const Elf64_Ehdr *header = &interp->head.header;
    long got = sys_pread(fd, &interp->head, sizeof interp->head, 0);
    uint64_t end = header->e_phoff + (uint64_t)header->e_phnum * sizeof(Elf64_Phdr);

    if (failed(got))
        return interp_failed(fault, "cannot read its dynamic loader", -got);
    if (got < (long)sizeof *header || memcmp(header->e_ident, ELFMAG, SELFMAG) != 0 || header->e_ident[EI_CLASS] != ELFCLASS64 ||
        header->e_machine != ARCH_MACHINE || header->e_type != ET_DYN)
        return interp_unusable(fault, "no shared object for this machine");
    if (header->e_phentsize != sizeof(Elf64_Phdr) || header->e_phoff > HEAD_LEN || end > (uint64_t)got || header->e_phoff % 8)
        return interp_unusable(fault, "its program headers do not lie in its first 2048 bytes");
    interp->image.headers = (const Elf64_Phdr *)(interp->head.bytes + header->e_phoff);
    interp->image.count = header->e_phnum;
    return 1;
}

static int interp_extent(const struct interp *interp, struct extent *extent, struct fault *fault)
{
    extent->low = ~0UL;
    extent->high = 0;
    extent->align = XIP_PAGE;
    for (size_t i = 0; i < interp->image.count; i++) {
        const Elf64_Phdr *header = &interp->image.headers[i];
        uint64_t start = page_floor(header->p_vaddr), end = page_ceil(header->p_vaddr + header->p_memsz);

        if (header->p_type != PT_LOAD)
            continue;
        if ((header->p_vaddr ^ header->p_offset) & PAGE_MASK || end < start || header->p_filesz > header->p_memsz)
            return interp_unusable(fault, "its segments make no sense");
        extent->low = start < extent->low ? start : extent->low;
        extent->high = end > extent->high ? end : extent->high;
        extent->align = header->p_align > extent->align ? header->p_align : extent->align;
    }
    if (extent->low >= extent->high || extent->align & (extent->align - 1))
        return interp_unusable(fault, "its segments make no sense");
    return 1;
}

/* Reserves the very addresses that AT_BASE promises, in the hole that our own segments leave. */
static int interp_reserve_hole(struct interp *interp, const struct extent *extent, uintptr_t hole)
{
    uint64_t len = extent->high - extent->low;
    long result;

    if (!hole || hole & (extent->align - 1) || extent->high > LOADER_HOLE)
        return 0;
    sys_munmap(hole, XIP_PAGE); /* our own headers, which nobody needs any more */
    result = sys_mmap(hole + extent->low, len, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE, -1, 0);
    if (failed(result))
        return 0;
    if ((uintptr_t)result != hole + extent->low) { /* a kernel that does not know the flag */
        sys_munmap((uintptr_t)result, len);
        return 0;
    }
    interp->image.bias = hole;
    return 1;
}

/* Reserves addresses anywhere, and gives back what was only taken for the alignment. */
static int interp_reserve(struct interp *interp, const struct extent *extent, struct fault *fault)
{
    uint64_t len = extent->high - extent->low, slack = extent->align - XIP_PAGE;
    long result = sys_mmap(0, len + slack, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    uintptr_t start, at;

    if (failed(result))
        return interp_failed(fault, "cannot map its dynamic loader", -result);
    start = (uintptr_t)result;
    at = start + ((extent->low - start) & (extent->align - 1));
    if (at > start)
        sys_munmap(start, at - start);
    if (at - start < slack)
        sys_munmap(at + len, slack - (at - start));
    interp->image.bias = at - extent->low;
    return 1;
}

static long interp_segment(const struct interp *interp, const Elf64_Phdr *header, long fd)
{
    int prot = prot_of(header->p_flags);
    uintptr_t start = interp->image.bias + header->p_vaddr, page = page_floor(start);
    uintptr_t file_end = start + header->p_filesz, end = start + header->p_memsz, zero_end = page_ceil(file_end);
    long result = 0;

    if (header->p_filesz)
        result = sys_mmap(page, file_end - page, prot, MAP_PRIVATE | MAP_FIXED, fd, page_floor(header->p_offset));
    if (failed(result))
        return result;
    if (header->p_filesz && header->p_flags & PF_W)
        for (volatile char *at = (volatile char *)file_end; (uintptr_t)at < zero_end; at++)
            *at = 0;
    if (!header->p_filesz)
        zero_end = page;
    if (end > zero_end)
        result = sys_mmap(zero_end, end - zero_end, prot, MAP_PRIVATE | MAP_FIXED | MAP_ANONYMOUS, -1, 0);
    return result;
}

static int interp_map(struct interp *interp, long fd, uintptr_t hole, struct fault *fault)
{
    struct extent extent;

    if (!interp_read(interp, fd, fault) || !interp_extent(interp, &extent, fault))
        return 0;
    if (!interp_reserve_hole(interp, &extent, hole) && !interp_reserve(interp, &extent, fault))
        return 0;
    for (size_t i = 0; i < interp->image.count; i++) {
        const Elf64_Phdr *header = &interp->image.headers[i];
        long result = header->p_type == PT_LOAD ? interp_segment(interp, header, fd) : 0;

        if (failed(result))
            return interp_failed(fault, "cannot map its dynamic loader", -result);
    }
    interp->entry = interp->image.bias + interp->head.header.e_entry;
    return 1;
}

/* `hole` is where it should be, if that can be: where the kernel's AT_BASE points to. */
static int interp_load(struct interp *interp, const char *path, uintptr_t hole, struct fault *fault)
{
    long fd = sys_open(path);
    int done;

    if (failed(fd))
        return interp_failed(fault, "cannot open its dynamic loader", -fd);
    done = !failed(sys_fstat(fd, &interp->status)) ? interp_map(interp, fd, hole, fault)
                                                   : interp_unusable(fault, "its state cannot be read");
    sys_close(fd);
    return done;
}

#endif
