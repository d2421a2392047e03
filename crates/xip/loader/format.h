/*
 * format.h: the records of a split program, as the loader and the audit object read them.
 *
 * What must hold: every number and every field is that of src/format.rs, which says what they mean; a test of src/loader.rs
 * compares the two. Both records are little-endian, as are all machines the loader is built for.
 */
#ifndef TOWA_XIP_FORMAT_H
#define TOWA_XIP_FORMAT_H

#include <stdint.h>

#define XIP_PAGE 4096
#define SPLIT_MARK 0x0f200000
#define ABC_MAGIC "TOWAABC1"
#define XYZ_MAGIC "TOWAXYZ1"
#define MAGIC_LEN 8
#define XIP_VERSION 1
#define PATH_AT 256
#define STORE_PATH_MAX 2048
#define LOADER_NAME "ld-towa-xip.so"
#define AUDIT_NAME "towa-xip-audit.so"
#define RANGES_MAX 64
#define ABC_LIBS 1
#define XYZ_LIBRARY 1
#define RANGE_TEXT 2
#define RANGE_RODATA 3
#define KEY_LEN 32
#define BUILD_ID_MAX 64
#define IDENTITY_LEN 40

/* The bits of p_flags among which SPLIT_MARK is (a part of PF_MASKOS). */
#define SPLIT_MARK_MASK 0x0ff00000

/* Where the audit object's store path goes, and what is there before (src/loader.rs writes it). */
#define SLOT_MARKER "TOWA-XIP-STORE-PATH:"
#define SLOT_LEN 2304

/* In the first whole page of ABC's text; the loader's path follows, PATH_AT bytes into the page. */
struct abc_record {
    uint8_t magic[MAGIC_LEN];
    uint32_t version;
    uint32_t flags;
    uint8_t key[KEY_LEN];
    uint64_t original_len;
    uint32_t store_len;
    uint32_t reserved;
    uint8_t unused[176];
    uint64_t checksum;
    uint8_t pad[8];
};

/* A stretch of the original that XYZ holds at the same offset. */
struct xyz_range {
    uint64_t offset;
    uint64_t len;
    uint32_t kind;
    uint32_t reserved;
};

/* The used part of XYZ's last page. */
struct xyz_record {
    uint8_t magic[MAGIC_LEN];
    uint32_t version;
    uint32_t range_count;
    uint8_t key[KEY_LEN];
    uint64_t original_len;
    uint32_t flags;
    uint32_t build_id_len;
    uint8_t build_id[BUILD_ID_MAX];
    struct xyz_range ranges[RANGES_MAX];
};

/* The state of a library's file: its name in the store (src/store/identity.rs). */
struct identity {
    uint64_t inode;
    uint64_t size;
    uint64_t modified;
    uint64_t changed;
    uint32_t modified_ns;
    uint32_t changed_ns;
};

_Static_assert(sizeof(struct identity) == IDENTITY_LEN, "no padding: its bytes are a name");
_Static_assert(sizeof(struct abc_record) == PATH_AT, "the path lies behind the record");
_Static_assert(sizeof(struct xyz_range) == 24 && sizeof(struct xyz_record) == 1664, "as in format.rs");

#endif
