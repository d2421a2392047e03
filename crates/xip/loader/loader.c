/*
 * loader.c: the interpreter that a split program names. The kernel maps the program (ABC) and this, and comes here.
 *
 *   before   │ABC: headers, rodata│ record, path, zeros… │ data │   │ our headers │ hole       │ loader │   AT_BASE = our headers
 *                     text from XYZ ────┐ MAP_FIXED                   ┌── the real ld.so, as PT_INTERP.p_vaddr names it
 *   after    │ABC: headers, rodata│ text of XYZ          │ data │   │ ld.so       │            │ loader │   AT_BASE = ld.so
 *
 * A program without PT_INTERP.p_vaddr is static: there is no ld.so, AT_BASE becomes 0, and we go to the program's entry.
 *
 * What must hold: no instruction of the program is executed before all of its text is mapped, from the XYZ of its own key. The stack
 * pointer and the registers are the kernel's at the end. A failure is one line on standard error and status 127, and says what to do.
 * This object has no relocations, for nobody would apply them: no pointer is initialised statically (a test watches over that).
 */
#include "interp.h"
#include "process.h"

ARCH_START;

#define EXIT_FAILURE_OF_LOADER 127
#define CHECK_SETTING "TOWA_XIP_CHECK="
/* `CHECKED` in src/install.rs. Not 0: who started the program without asking for this must not take it for done. */
#define STATUS_CHECKED 86
#define PRELOAD_SETTING "LD_PRELOAD="
#define PRELOAD_FILE "/etc/ld.so.preload"

/* Bytes of the key by which XYZ is named, and a program is asked to be checked. */
#define KEY_NAMED 16

/*
 * The path that is put together at the moment. At the end it is that of the audit object: ld.so reads it here, as a string of the
 * program (DT_AUDIT), so it must stay.
 */
static char path[PATH_ROOM];
static char message[PATH_ROOM + 8192];

/* The start of this object, in the linker's words. */
extern const char __ehdr_start[] __attribute__((visibility("hidden")));

/* The program, and what its record says. The record itself is gone once the text is mapped over it. */
struct program {
    struct image image;
    const char *interp;
    uint32_t flags;
    size_t store_len;
    uint8_t key[KEY_LEN];
    char store[STORE_PATH_MAX];
};

static const char *reason_of(long error)
{
    if (error == ENOENT)
        return "no such file";
    if (error == EACCES)
        return "permission denied";
    if (error == EPERM)
        return "not permitted";
    if (error == ENOMEM)
        return "out of memory";
    if (error == EMFILE)
        return "too many open files";
    return NULL;
}

static const char *remedy_of(long error)
{
    if (error == ENOENT)
        return REMEDY_RESTORE;
    if (error == EACCES)
        return "make it readable to all who run the program (chmod a+r; a+x for its directories)";
    if (error == ENOMEM)
        return "free memory, or raise the limit (ulimit -v)";
    if (error == EMFILE)
        return "raise the limit (ulimit -n)";
    return "`towa xip verify` tells more";
}

static _Noreturn void die(const struct start *start, const char *file, const struct fault *fault)
{
    struct words words = {message, 0, sizeof message};
    const char *reason = fault->error ? reason_of(fault->error) : fault->reason;

    words_string(&words, "towa xip: ");
    words_name(&words, start->name);
    words_string(&words, ": ");
    words_string(&words, fault->what);
    words_string(&words, ": ");
    words_name(&words, file);
    words_string(&words, ": ");
    if (reason) {
        words_string(&words, reason);
    } else {
        words_string(&words, "error ");
        words_number(&words, (unsigned long)fault->error);
    }
    words_string(&words, "; ");
    words_string(&words, fault->remedy ? fault->remedy : remedy_of(fault->error));
    words_byte(&words, '\n');
    sys_write(2, words.text, words.len);
    sys_exit(EXIT_FAILURE_OF_LOADER);
}

/* Fails for a reason that lies in the program's own file. */
static _Noreturn void die_unfit(const struct start *start, const char *reason)
{
    struct fault fault;

    fault_words(&fault, reason, "restore it from its package or a copy, and split it anew");
    fault.what = "not a split program that can be run";
    die(start, start->name, &fault);
}

/* What the kernel added to the program's addresses. */
static uintptr_t bias_of(const struct start *start)
{
    const Elf64_Phdr *headers = (const Elf64_Phdr *)start->headers;

    for (size_t i = 0; i < start->header_count; i++)
        if (headers[i].p_type == PT_PHDR)
            return start->headers - headers[i].p_vaddr;
    for (size_t i = 0; i < start->header_count; i++)
        if (headers[i].p_type == PT_LOAD && headers[i].p_offset == 0)
            return page_floor(start->headers) - page_floor(headers[i].p_vaddr);
    die_unfit(start, "its program headers are in no segment");
}

static const Elf64_Phdr *find_header(const struct image *image, uint32_t type)
{
    for (size_t i = 0; i < image->count; i++)
        if (image->headers[i].p_type == type)
            return &image->headers[i];
    return NULL;
}

/* The record in the text, which the kernel has mapped from ABC; PT_INTERP tells where the path behind it lies in the file. */
static const struct abc_record *find_record(const struct image *image, const Elf64_Phdr *interp)
{
    uint64_t page = interp->p_offset - PATH_AT;

    for (size_t i = 0; i < image->count && page % XIP_PAGE == 0; i++) {
        const Elf64_Phdr *header = &image->headers[i];
        uint64_t end = page_ceil(header->p_offset + header->p_filesz);

        if (is_text(header) && page >= page_floor(header->p_offset) && page < end) {
            const void *at = (const void *)(image->bias + header->p_vaddr - header->p_offset + page);

            return memcmp(at, ABC_MAGIC, MAGIC_LEN) == 0 ? at : NULL;
        }
    }
    return NULL;
}

static void read_record(const struct start *start, struct program *program, const struct abc_record *record)
{
    const char *loader = (const char *)record + PATH_AT;

    if (record->version != XIP_VERSION)
        die_unfit(start, "its record is of another version than the loader");
    if (record->store_len == 0 || record->store_len > STORE_PATH_MAX || loader[0] != '/' || loader[record->store_len] != '/')
        die_unfit(start, "its record is damaged");
    program->flags = record->flags;
    program->store_len = record->store_len;
    memcpy(program->key, record->key, KEY_LEN);
    memcpy(program->store, loader, record->store_len);
}

static void read_program(const struct start *start, struct program *program)
{
    const struct abc_record *record;
    const Elf64_Phdr *interp;

    if (start->page_size != XIP_PAGE)
        die_unfit(start, "pages of this machine are not 4096 bytes");
    if (!start->headers || start->header_size != sizeof(Elf64_Phdr))
        die_unfit(start, "its program headers are unknown");
    program->image.headers = (const Elf64_Phdr *)start->headers;
    program->image.count = start->header_count;
    program->image.bias = bias_of(start);
    interp = find_header(&program->image, PT_INTERP);
    if (!interp)
        die_unfit(start, "it names no loader (this is the loader of split programs, and not to be run by itself)");
    record = find_record(&program->image, interp);
    if (!record)
        die_unfit(start, "it has no record where its text was");
    read_record(start, program, record);
    program->interp = interp->p_vaddr ? (const char *)(program->image.bias + interp->p_vaddr) : NULL;
}

static struct words path_in_store(const struct program *program, const char *name)
{
    struct words words = {path, 0, sizeof path};

    words_add(&words, program->store, program->store_len);
    words_string(&words, name);
    return words;
}

static void map_text(const struct start *start, const struct program *program)
{
    struct words words = path_in_store(program, "/xyz/");
    struct xyz xyz;
    struct fault fault;
    int done;

    words_hex(&words, program->key, 1);
    words_byte(&words, '/');
    words_hex(&words, program->key + 1, KEY_NAMED - 1);
    words_string(&words, ".xyz");
    if (!xyz_open(&xyz, path, program->store_len, start->secure != 0, &fault))
        die(start, path, &fault);
    if (memcmp(xyz.record.key, program->key, KEY_LEN) != 0)
        done = fault_words(&fault, "the text of another program", REMEDY_RESTORE);
    else
        done = xyz_fits(&xyz, &program->image, &fault) && xyz_map(&xyz, &program->image, &fault);
    if (!done)
        die(start, path, &fault);
    sys_close(xyz.fd);
}

/* The program's dynamic section in memory, if it may be written: its protection (RELRO) comes later, from ld.so. */
static Elf64_Dyn *find_dynamic(const struct image *image, size_t *count)
{
    const Elf64_Phdr *header = find_header(image, PT_DYNAMIC);

    if (!header || !in_segment(image, header->p_vaddr, header->p_memsz, PF_R | PF_W))
        return NULL;
    *count = header->p_memsz / sizeof(Elf64_Dyn);
    return (Elf64_Dyn *)(image->bias + header->p_vaddr);
}

/* glibc does without it: relocations that it counts are then told from others one by one. lld leaves no spare entry, but has this one. */
#define TAG_TO_SPARE DT_RELACOUNT

/*
 * Gives the program a DT_AUDIT that names `path`. Linkers leave spare entries at the end; the section must end with one all the same.
 * Where there is none, a tag that ld.so can do without gives its entry. src/elf.rs tells beforehand whether there is one. ld.so takes the value as a distance from the program's strings, so it can reach a string anywhere. It will have relocated DT_STRTAB
 * by then, and has not now.
 */
static int add_audit(const struct image *image)
{
    Elf64_Dyn *entry, *end, *sparable = NULL;
    uintptr_t strings = 0;
    size_t count;

    entry = find_dynamic(image, &count);
    if (!entry)
        return 0;
    for (end = entry + count; entry < end && entry->d_tag != DT_NULL; entry++) {
        if (entry->d_tag == DT_AUDIT)
            return 0;
        if (entry->d_tag == DT_STRTAB)
            strings = image->bias + entry->d_un.d_ptr;
        if (entry->d_tag == TAG_TO_SPARE)
            sparable = entry;
    }
    if (end - entry < 2 || entry[1].d_tag != DT_NULL)
        entry = sparable;
    if (!strings || !entry)
        return 0;
    entry->d_un.d_val = (uintptr_t)path - strings;
    entry->d_tag = DT_AUDIT;
    return 1;
}

/*
 * Whether libraries are loaded that the program was not linked with. For an audited program ld.so lays out the static part of
 * thread-local storage before it loads any library; theirs need not fit into what it has to spare, and would be refused.
 */
static int has_preloads(const struct start *start)
{
    return start_value(start, PRELOAD_SETTING) || !failed(sys_readable(PRELOAD_FILE));
}

/* Lets the text of libraries come from the store too, where the program can be told so; otherwise they are mapped from their files. */
static void map_libraries(const struct start *start, const struct program *program)
{
    struct stat status;
    struct fault ignored;

    if (!(program->flags & ABC_LIBS) || start->secure || has_preloads(start))
        return;
    path_in_store(program, "/" AUDIT_NAME);
    for (const char *at = path; *at; at++)
        if (*at == ':') /* DT_AUDIT is a list */
            return;
    if (!failed(sys_readable(path)) && !failed(sys_stat(path, &status)) &&
        xyz_safe(&status, path, program->store_len, 0, &ignored))
        add_audit(&program->image);
}

/* Maps ld.so, and returns where it begins; a static program begins itself. */
static uintptr_t map_interp(const struct start *start, const struct program *program)
{
    struct interp interp;
    struct fault fault;
    uintptr_t base = 0, entry = start->entry, hole = 0;

    if (start->base && start->base->a_un.a_val == (uintptr_t)__ehdr_start)
        hole = (uintptr_t)__ehdr_start;

    if (program->interp) {
        if (!interp_load(&interp, program->interp, hole, &fault))
            die(start, program->interp, &fault);
        if (program->flags & ABC_LIBS)
            overlay_library(&interp.image, &interp.status, program->store, program->store_len, start->secure != 0);
        base = interp.image.bias;
        entry = interp.entry;
    }
    start_set_base(start, base);
    return entry;
}

/*
 * Whether we are asked to end here. One must name the program: a word that all programs understand would, wherever it is left in an
 * environment, end every one of them before it has run. A program with more rights than its user's is not asked (start_value).
 */
static int is_check(const struct start *start, const struct program *program)
{
    const char *value = start_value(start, CHECK_SETTING);
    char key[2 * KEY_NAMED + 1];
    struct words words = {key, 0, sizeof key};

    words_hex(&words, program->key, KEY_NAMED);
    return value && same_string(value, key);
}

/* Called from _start; returns the address to go to. */
__attribute__((visibility("hidden"), used)) uintptr_t loader_main(uintptr_t *stack)
{
    struct start start;
    struct program program;
    uintptr_t entry;

    start_read(&start, stack);
    read_program(&start, &program);
    map_text(&start, &program);
    entry = map_interp(&start, &program);
    if (is_check(&start, &program))
        sys_exit(STATUS_CHECKED);
    if (program.interp)
        map_libraries(&start, &program);
    return entry;
}
