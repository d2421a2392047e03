/*
 * overlay.h: maps the text of an ELF image from XYZ over the text that is mapped already.
 *
 *   before    │ headers, rodata │ text of the file │ rodata │ data │     private mappings of one ELF file
 *   after     │ headers, rodata │ text of XYZ      │ rodata │ data │     (rodata of XYZ too, if XYZ has it)
 *
 * What must hold: nothing is mapped before every range of XYZ was found to lie within a segment of its own kind, to meet no writable
 * segment, and to be there in the file; so a page of the text is never one that was not checked, and never beyond the end of the file.
 * The image is not relocated yet, or its text needs no relocation.
 *
 * Why the text that is mapped is the right one, though no start reads it to compare: a program names its text by the SHA-256 of the original
 * file, a library by the state of its file (inode, size, times), which every change of the file changes; `towa xip split` made both names
 * from the bytes it wrote; and only root or the owner of the store could have written anything else since: a text of any other owner is
 * refused, and so is one that others can write to. Over a library no text of a program is mapped: programs of any owner have texts in the
 * store, of libraries only those that belong to root or to who split them. `towa xip verify` hashes all of it again.
 */
#ifndef TOWA_XIP_OVERLAY_H
#define TOWA_XIP_OVERLAY_H

#include "format.h"
#include "sys.h"

#define PAGE_MASK ((uint64_t)XIP_PAGE - 1)

/* Room for the path of a store and of any file in it: "/lib/", 40 bytes in hex, a slash, ".xyz". */
#define PATH_ROOM (STORE_PATH_MAX + 256)

/* Bytes of an ELF file in which its program headers must lie: 35 of them fit; ld.so and libraries have a dozen. */
#define HEAD_LEN 2048

/* An ELF file that is mapped: `bias` is what to add to its addresses. */
struct image {
    uintptr_t bias;
    const Elf64_Phdr *headers;
    size_t count;
};

/* An open XYZ. */
struct xyz {
    long fd;
    uint64_t size;
    struct xyz_record record;
};

/* Why something cannot be used: an error number, or words; and what to do about it, if that does not follow from the number. */
struct fault {
    const char *what;
    long error;
    const char *reason;
    const char *remedy;
};

static inline int fault_error(struct fault *fault, const char *what, long error)
{
    fault->what = what;
    fault->error = error;
    fault->reason = NULL;
    fault->remedy = NULL;
    return 0;
}

static inline int fault_words(struct fault *fault, const char *reason, const char *remedy)
{
    fault->what = "its text cannot be used";
    fault->error = 0;
    fault->reason = reason;
    fault->remedy = remedy;
    return 0;
}

#define REMEDY_RESTORE "put it back, or restore the program from its package or a copy; `towa xip verify` tells more"

static inline uint64_t page_floor(uint64_t offset)
{
    return offset & ~PAGE_MASK;
}

static inline uint64_t page_ceil(uint64_t offset)
{
    return (offset + PAGE_MASK) & ~PAGE_MASK;
}

static inline int prot_of(uint32_t flags)
{
    return (flags & PF_R ? PROT_READ : 0) | (flags & PF_W ? PROT_WRITE : 0) | (flags & PF_X ? PROT_EXEC : 0);
}

static inline int is_text(const Elf64_Phdr *header)
{
    return header->p_type == PT_LOAD && (header->p_flags & (PF_X | PF_W)) == PF_X;
}

static inline int is_rodata(const Elf64_Phdr *header)
{
    return header->p_type == PT_LOAD && (header->p_flags & (PF_R | PF_W | PF_X)) == PF_R;
}

/* Whether `uid` owns the store, the first `store_len` bytes of `path`. */
static int owns_store(uint32_t uid, char *path, size_t store_len)
{
    struct stat status;
    char next = path[store_len];
    long result;

    path[store_len] = 0;
    result = sys_stat(path, &status);
    path[store_len] = next;
    return !failed(result) && status.st_uid == uid;
}

/*
 * Whether only root or the owner of the store could have written this XYZ, whatever its mode says now: an owner can change that. It is a
 * regular file that can hold a record.
 */
static int xyz_safe(const struct stat *status, char *path, size_t store_len, int secure, struct fault *fault)
{
    if ((status->st_mode & FILE_TYPE_MASK) != FILE_TYPE_REGULAR)
        return fault_words(fault, "no regular file", REMEDY_RESTORE);
    if (status->st_mode & WRITABLE_BY_OTHERS)
        return fault_words(fault, "others than its owner can write it",
                           "take that right from them (chmod go-w) once `towa xip verify` has found it whole");
    if (secure && status->st_uid != 0)
        return fault_words(fault, "not owned by root, as the text of a set-id program must be",
                           "give it to root (chown root) once `towa xip verify` has found it whole");
    if (status->st_uid != 0 && !owns_store(status->st_uid, path, store_len))
        return fault_words(fault, "owned neither by root nor by the owner of its store",
                           "give it to the store's owner (chown) once `towa xip verify` has found it whole");
    if (status->st_size < XIP_PAGE)
        return fault_words(fault, "too short", REMEDY_RESTORE);
    return 1;
}

static int xyz_read(struct xyz *xyz, struct fault *fault)
{
    struct xyz_record *record = &xyz->record;
    long got = sys_pread(xyz->fd, record, sizeof *record, xyz->size - XIP_PAGE);

    if (failed(got))
        return fault_error(fault, "cannot read its text", -got);
    if (got != sizeof *record || memcmp(record->magic, XYZ_MAGIC, MAGIC_LEN) != 0)
        return fault_words(fault, "damaged, or no text of a split program", REMEDY_RESTORE);
    if (record->version != XIP_VERSION)
        return fault_words(fault, "of another version", "split the program anew with the `towa` that is installed");
    if (record->range_count > RANGES_MAX || record->build_id_len > BUILD_ID_MAX)
        return fault_words(fault, "damaged", REMEDY_RESTORE);
    return 1;
}

/* Opens XYZ, in the store that the first `store_len` bytes of `path` name, and reads its record. The caller checks the record's key. */
static int xyz_open(struct xyz *xyz, char *path, size_t store_len, int secure, struct fault *fault)
{
    struct stat status;
    long result = sys_open(path);

    if (failed(result))
        return fault_error(fault, "cannot open its text", -result);
    xyz->fd = result;
    result = sys_fstat(xyz->fd, &status);
    if (!failed(result)) {
        xyz->size = (uint64_t)status.st_size;
        if (xyz_safe(&status, path, store_len, secure, fault) && xyz_read(xyz, fault))
            return 1;
    } else {
        fault_error(fault, "cannot look at its text", -result);
    }
    sys_close(xyz->fd);
    return 0;
}

/* The segment that a range is to be mapped over: a text as a whole, read-only data in part. */
static const Elf64_Phdr *segment_of(const struct image *image, const struct xyz_range *range)
{
    for (size_t i = 0; i < image->count; i++) {
        const Elf64_Phdr *header = &image->headers[i];
        uint64_t start = page_floor(header->p_offset);
        uint64_t end = page_ceil(header->p_offset + header->p_filesz);

        if ((header->p_vaddr ^ header->p_offset) & PAGE_MASK || header->p_filesz != header->p_memsz)
            continue;
        if (range->kind == RANGE_TEXT && is_text(header) && range->offset == start && range->len == end - start)
            return header;
        if (range->kind == RANGE_RODATA && is_rodata(header) && range->offset >= start && range->offset + range->len <= end)
            return header;
    }
    return NULL;
}

static int meets_writable(const struct image *image, uint64_t address, uint64_t len)
{
    for (size_t i = 0; i < image->count; i++) {
        const Elf64_Phdr *header = &image->headers[i];

        if (header->p_type == PT_LOAD && header->p_flags & PF_W && page_floor(header->p_vaddr) < address + len &&
            address < page_ceil(header->p_vaddr + header->p_memsz))
            return 1;
    }
    return 0;
}

static inline uint64_t address_of(const Elf64_Phdr *header, const struct xyz_range *range)
{
    return header->p_vaddr - header->p_offset + range->offset;
}

static inline int is_mapped(const struct xyz_range *range)
{
    return range->kind == RANGE_TEXT || range->kind == RANGE_RODATA;
}

static int range_fits(const struct xyz *xyz, const struct image *image, const struct xyz_range *range)
{
    uint64_t end = range->offset + range->len;
    const Elf64_Phdr *header;

    if ((range->offset | range->len) & PAGE_MASK || end <= range->offset || end > xyz->size - XIP_PAGE)
        return 0;
    header = segment_of(image, range);
    return header && !meets_writable(image, address_of(header, range), range->len);
}

/* Whether a text that was taken out of the program is there in XYZ. */
static int has_text(const struct xyz *xyz, const struct image *image, const Elf64_Phdr *header)
{
    for (uint32_t i = 0; i < xyz->record.range_count; i++)
        if (xyz->record.ranges[i].kind == RANGE_TEXT && segment_of(image, &xyz->record.ranges[i]) == header)
            return 1;
    return 0;
}

static int xyz_fits(const struct xyz *xyz, const struct image *image, struct fault *fault)
{
    for (uint32_t i = 0; i < xyz->record.range_count; i++) {
        const struct xyz_range *range = &xyz->record.ranges[i];

        if (is_mapped(range) && !range_fits(xyz, image, range))
            return fault_words(fault, "does not fit the program's segments, or is too short", REMEDY_RESTORE);
    }
    for (size_t i = 0; i < image->count; i++) {
        const Elf64_Phdr *header = &image->headers[i];

        if (is_text(header) && (header->p_flags & SPLIT_MARK_MASK) == SPLIT_MARK && !has_text(xyz, image, header))
            return fault_words(fault, "lacks a text segment of the program", REMEDY_RESTORE);
    }
    return 1;
}

/* Maps what `xyz_fits` has found to fit. The headers may be overlaid themselves: XYZ has the same segments there. */
static int xyz_map(const struct xyz *xyz, const struct image *image, struct fault *fault)
{
    for (uint32_t i = 0; i < xyz->record.range_count; i++) {
        const struct xyz_range *range = &xyz->record.ranges[i];
        const Elf64_Phdr *header = is_mapped(range) ? segment_of(image, range) : NULL;
        long result;

        if (!header)
            continue;
        result = sys_mmap(image->bias + address_of(header, range), range->len, prot_of(header->p_flags), MAP_PRIVATE | MAP_FIXED,
                          xyz->fd, range->offset);
        if (result == -EPERM)
            return fault_words(fault, "its file system is mounted noexec, or a security policy forbids to execute it",
                               "mount the store without noexec");
        if (failed(result))
            return fault_error(fault, "cannot map its text", -result);
    }
    return 1;
}

/* Whether memory from `address` (as in the file's headers) is within what a readable segment has from the file. */
static int in_segment(const struct image *image, uint64_t address, uint64_t len, uint32_t flags)
{
    for (size_t i = 0; i < image->count; i++) {
        const Elf64_Phdr *header = &image->headers[i];

        if (header->p_type == PT_LOAD && (header->p_flags & flags) == flags && address >= header->p_vaddr &&
            len <= header->p_filesz && address - header->p_vaddr <= header->p_filesz - len)
            return 1;
    }
    return 0;
}

/* Whether relocations would write the text: then each process has a copy of its own, and there is nothing to share. */
static int has_textrel(const struct image *image)
{
    for (size_t i = 0; i < image->count; i++) {
        const Elf64_Phdr *header = &image->headers[i];

        if (header->p_type != PT_DYNAMIC)
            continue;
        if (!in_segment(image, header->p_vaddr, header->p_filesz, PF_R))
            return 1;
        const Elf64_Dyn *entry = (const Elf64_Dyn *)(image->bias + header->p_vaddr);
        for (size_t left = header->p_filesz / sizeof *entry; left && entry->d_tag != DT_NULL; left--, entry++)
            if (entry->d_tag == DT_TEXTREL || (entry->d_tag == DT_FLAGS && entry->d_un.d_val & DF_TEXTREL))
                return 1;
    }
    return 0;
}

/* Whether XYZ begins with the program headers that are mapped. */
static int same_headers(const struct xyz *xyz, const struct image *image)
{
    union {
        Elf64_Ehdr header;
        uint8_t bytes[HEAD_LEN];
    } head;
    size_t len = image->count * sizeof(Elf64_Phdr);
    long got = sys_pread(xyz->fd, &head, sizeof head, 0);

    return got == sizeof head && memcmp(head.header.e_ident, ELFMAG, SELFMAG) == 0 && head.header.e_phnum == image->count &&
           head.header.e_phentsize == sizeof(Elf64_Phdr) && len <= HEAD_LEN && head.header.e_phoff <= HEAD_LEN - len &&
           memcmp(head.bytes + head.header.e_phoff, image->headers, len) == 0;
}

/* The name in the store of the text of the library whose file has this status. */
static void add_library_name(struct words *words, const struct stat *file)
{
    struct identity identity = {
        .inode = file->st_ino,
        .size = (uint64_t)file->st_size,
        .modified = (uint64_t)file->st_mtime,
        .changed = (uint64_t)file->st_ctime,
        .modified_ns = (uint32_t)file->st_mtime_nsec,
        .changed_ns = (uint32_t)file->st_ctime_nsec,
    };
    const uint8_t *bytes = (const uint8_t *)&identity;

    words_string(words, "/lib/");
    words_hex(words, bytes, 1);
    words_byte(words, '/');
    words_hex(words, bytes + 1, IDENTITY_LEN - 1);
    words_string(words, ".xyz");
}

/*
 * Maps the text of the library whose file has the status `file`, if the store has the text of exactly that file: any change of the file
 * since then has changed its status. Without a text, or with one that is not right in every way, the library stays as it is: its own
 * file is whole.
 */
static void overlay_library(const struct image *image, const struct stat *file, const char *store, size_t store_len, int secure)
{
    char path[PATH_ROOM];
    struct words words = {path, 0, sizeof path};
    struct xyz xyz;
    struct fault ignored;

    words_add(&words, store, store_len);
    add_library_name(&words, file);
    if (!xyz_open(&xyz, path, store_len, secure, &ignored))
        return;
    if (xyz.record.flags & XYZ_LIBRARY && xyz.record.original_len == (uint64_t)file->st_size && same_headers(&xyz, image) && !has_textrel(image) &&
        xyz_fits(&xyz, image, &ignored))
        xyz_map(&xyz, image, &ignored);
    sys_close(xyz.fd);
}

#endif
