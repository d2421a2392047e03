package io.towa.pool;

/**
 * Where everything lies in a pool file, version 1 (docs/format.md, "java"). Little endian; references are byte offsets in the file, 0 is null.
 *
 * <pre>
 *   0        superblock, slot 0        4096   superblock, slot 1        512   number of the last commit whose pages are here
 *   8192     words, each updated by one aligned store; none of them is ever 0 but the hint and those of sizes and code
 *   65536    segments of 4096 bytes up to the frontier: records and replicas
 *   capacity number of the last commit whose pages were begun to be written here
 * </pre>
 */
public final class Layout {
    public static final byte[] MAGIC = {'T', 'O', 'W', 'A', 'J', 'A', 'V', 'A'};
    public static final int VERSION = 1;
    public static final int SLOT = 4096;
    public static final int SUPERBLOCK = 256;

    /** See {@link RedoLog}: 0 in a pool that was never opened for commits. */
    public static final long DONE = 512;
    /** A word that leads nowhere: not 0, so that zeros in its place are found out. */
    public static final long NONE = 1;

    /** End of the used segments; only grows. */
    public static final long FRONTIER = 8192;
    /** See {@link #MAX_MARK_NUMBER}; 1 in a new pool. */
    public static final long MARK_NUMBER = 8200;
    /** Cycle of the collector: the stamp of new replicas. */
    public static final long CYCLE = 8208;
    public static final long CLASSES = 8216;
    public static final long ROOTS = 8224;
    public static final long UNDO = 8232;
    /** {@link #STALE}: tables that lie behind an OnDemand may be made for identity hashes that constants do not have any more; {@link #NONE}: none are. */
    public static final long REHASH = 8240;
    public static final long STALE = 2;
    /** Sections have numbers below this one; only grows. */
    public static final long SECTIONS = 8256;

    /** Bytes in use after the collector's last cycle; a hint, never written back for its own sake; 0: there was none. */
    public static final long KEPT = 8248;
    /** {@link #NONE}: each collection's size is that of its entries; anything else, as in older pools: it may not be. */
    public static final long COUNTS = 8264;
    /** Sum of the stamps of the files from which the classes were that {@link #CLASSES} has; 0: it is not known. */
    public static final long CODE = 8272;

    public static final long HEAP = 65536;
    public static final int SEGMENT = 4096;

    /** Replica: class index, stamp, mark, identity hash, length, data. */
    public static final int CLASS_INDEX = 0;
    public static final int STAMP = 4;
    public static final int MARK = 8;
    public static final int HASH = 16;
    public static final int LENGTH = 20;
    public static final int DATA = 24;

    /** Recoveries of other builds mark what they meet with their numbers. Nothing here does; a number that is none is a sign of damage. */
    public static final long MAX_MARK_NUMBER = (1L << 28) - 1;
    public static final int MAX_CYCLE = (1 << 28) - 1;

    /** Record: next, kind, bytes, checksum, whether it may be the last of its chain; payload. */
    public static final int RECORD_KIND = 8;
    public static final int RECORD_BYTES = 12;
    public static final int RECORD_SUM = 16;
    public static final int RECORD_LAST = 20;
    public static final int RECORD_PAYLOAD = 24;
    public static final int KIND_CLASS = 1;
    public static final int KIND_ROOT = 2;

    /** Forms of class records. */
    public static final int FORM_OBJECT = 0;
    public static final int FORM_ARRAY = 1;
    public static final int FORM_ENUM = 2;
    public static final int FORM_CLASS = 3;
    public static final int FORM_NAMED = 4;

    private Layout() {}

    /** Bytes of a field or an element in a replica, by the first letter of its descriptor. */
    public static int width(char type) {
        switch (type) {
            case 'Z':
            case 'B':
                return 1;
            case 'C':
            case 'S':
                return 2;
            case 'I':
            case 'F':
                return 4;
            default:
                return 8;
        }
    }
}
