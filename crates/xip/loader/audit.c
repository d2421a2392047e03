/*
 * audit.c: the object that lets the text of a split program's libraries come from the store as well. ld.so loads it because of the
 * DT_AUDIT that loader.c adds, and calls la_objopen for each library once it is mapped and before it is relocated.
 *
 *   before   │ libx.so: headers │ text of libx.so │ rodata │ data │
 *   after    │ libx.so: headers │ text of XYZ     │ rodata │ data │      if the store has the XYZ of this very file
 *
 * What must hold: the file of a library is whole, so whatever is not as it should be means that nothing is changed, and is no error.
 * No symbol is audited (la_objopen returns 0, and there is no la_symbind or la_pltenter): calls cost what they cost without us. There
 * is no C library here, and no state.
 */
#define _GNU_SOURCE /* the audit interface of link.h */

#include "overlay.h"

#include <link.h>

#ifndef LAV_CURRENT
#define LAV_CURRENT 2
#endif

#define EXPORTED __attribute__((visibility("default")))

/* The store's path; written into the file when a store is made. */
static const char store_slot[SLOT_LEN] = SLOT_MARKER;

/* The slot as it is in the file: the compiler must not think it knew what is there. */
static const char *slot(void)
{
    const char *at = store_slot;

    __asm__("" : "+r"(at));
    return at;
}

EXPORTED unsigned int la_version(unsigned int version)
{
    return version < LAV_CURRENT ? version : LAV_CURRENT;
}

/* Copies the store's path; returns its length, and 0 if none was written or what was written is no path. */
static size_t read_slot(char store[STORE_PATH_MAX])
{
    const char *from = slot();
    size_t len = 0;

    if (from[0] != '/')
        return 0;
    while (len < STORE_PATH_MAX && from[len]) {
        store[len] = from[len];
        len++;
    }
    return from[len] ? 0 : len;
}

/* The image of a library whose first segment holds its headers, as those of all linkers do. */
static int read_image(const struct link_map *map, struct image *image)
{
    const Elf64_Ehdr *header = (const Elf64_Ehdr *)map->l_addr;

    if (memcmp(header->e_ident, ELFMAG, SELFMAG) != 0 || header->e_ident[EI_CLASS] != ELFCLASS64 ||
        header->e_phentsize != sizeof(Elf64_Phdr) || header->e_phoff > HEAD_LEN ||
        header->e_phoff + header->e_phnum * sizeof(Elf64_Phdr) > HEAD_LEN)
        return 0;
    image->bias = map->l_addr;
    image->headers = (const Elf64_Phdr *)(map->l_addr + header->e_phoff);
    image->count = header->e_phnum;
    return in_segment(image, 0, header->e_phoff + image->count * sizeof(Elf64_Phdr), PF_R);
}

/* Whether an address is in a text of the image. */
static int in_text(const struct image *image, uintptr_t address)
{
    return in_segment(image, address - image->bias, 1, PF_X);
}

/* The program itself and the vDSO have no path; the first was done by the loader, and the second is the kernel's. */
static int has_path(const char *name)
{
    while (name && *name)
        if (*name++ == '/')
            return 1;
    return 0;
}

EXPORTED unsigned int la_objopen(struct link_map *map, long list, uintptr_t *cookie)
{
    uintptr_t caller = (uintptr_t)__builtin_return_address(0);
    char store[STORE_PATH_MAX];
    struct image image;
    struct stat file;
    size_t store_len;

    (void)list;
    (void)cookie;
    if (!map->l_addr || !has_path(map->l_name))
        return 0;
    /* ld.so, which calls us, was done by the loader as well. */
    if (!read_image(map, &image) || in_text(&image, caller))
        return 0;
    /*
     * ld.so has opened the file by this name a moment ago. Who can put another file there in between can as well put it there before; and
     * then the state is that of a file whose text is not the store's.
     */
    store_len = read_slot(store);
    if (store_len && !failed(sys_stat(map->l_name, &file)))
        overlay_library(&image, &file, store, store_len, 0);
    return 0;
}
