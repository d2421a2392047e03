package io.towa.pool;

import io.towa.PoolException;
import io.towa.PoolException.Reason;
import io.towa.medium.Nvm;
import java.io.ByteArrayOutputStream;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.zip.CRC32C;

/**
 * The records of classes and roots: two linked lists from words of the file's head (RBP: "nvm class" records).
 *
 * <p>A record is written whole and made durable, then its head is moved to it by one store: so a crash shows it whole or not at all. The
 * only part that changes afterwards is a root's value.
 */
public final class Records {
    /** A field of a class record. */
    public record Field(int offset, char type, String declaring, String name, String descriptor) {}

    /**
     * A class record.
     *
     * @param origin of a class whose name has a number from the compiler, what tells it from others ({@link io.towa.policy.Numbered}); else empty
     * @param hash of a class that has an own {@code hashCode}, what tells that from another one ({@link io.towa.policy.HashCodes}); else empty
     */
    public record ClassRecord(long at, int bytes, int index, int form, int instanceBytes, String name, List<Field> fields, String origin, String hash) {
        /** Whether replicas are arrays of references. */
        public boolean hasReferences() {
            return form == Layout.FORM_ARRAY && (name.charAt(1) == 'L' || name.charAt(1) == '[');
        }

        /** Bytes of a replica whose length field says {@code length}. */
        public long replicaBytes(long length) {
            return form == Layout.FORM_OBJECT ? instanceBytes : Layout.DATA + length * (form == Layout.FORM_ARRAY ? Layout.width(name.charAt(1)) : 1);
        }
    }

    /** A root record; its value lies at {@link #value}. */
    public record RootRecord(long at, int bytes, String className, String field, String descriptor) {
        public long value() {
            return at + Layout.RECORD_PAYLOAD;
        }
    }

    /** Between a class record's origin and its hash. */
    private static final char HASH = '#';

    private Records() {}

    /** Where the hash begins, with its sign; negative: there is none. An origin may have that sign in a method's name, but ends with a descriptor then. */
    private static int hashIn(String tail) {
        int at = tail.lastIndexOf(HASH);
        for (int i = at + 1; at >= 0 && i < tail.length(); i++) {
            if (Character.digit(tail.charAt(i), 16) < 0) {
                return -1;
            }
        }
        return at == tail.length() - 1 ? -1 : at;
    }

    /** Writes a class record and links it. */
    public static ClassRecord addClass(Allocator allocator, int index, int form, int instanceBytes, String name, List<Field> fields, String origin,
        String hash) {
        Out out = new Out();
        out.u32(index).u32(form).u32(instanceBytes).u32(fields.size()).text(name);
        for (int i = 0; i < fields.size(); i++) {
            Field f = fields.get(i);
            out.u32(f.offset).u32(f.type).text(f.declaring).text(f.name).text(f.descriptor);
        }
        String tail = hash.isEmpty() ? origin : origin + HASH + hash;
        if (!tail.isEmpty()) {
            out.text(tail);
        }
        long at = add(allocator, Layout.CLASSES, Layout.KIND_CLASS, out.bytes(), 0);
        return new ClassRecord(at, Layout.RECORD_PAYLOAD + out.bytes().length, index, form, instanceBytes, name, fields, origin, hash);
    }

    /** Writes a root record with a null value and links it. */
    public static RootRecord addRoot(Allocator allocator, String className, String field, String descriptor) {
        Out out = new Out();
        out.u32(0).u32(0).text(className).text(field).text(descriptor);
        long at = add(allocator, Layout.ROOTS, Layout.KIND_ROOT, out.bytes(), 8);
        return new RootRecord(at, Layout.RECORD_PAYLOAD + out.bytes().length, className, field, descriptor);
    }

    private static synchronized long add(Allocator allocator, long head, int kind, byte[] payload, int unchecked) {
        int bytes = Layout.RECORD_PAYLOAD + payload.length;
        Allocator.Cache cache = allocator.acquire();
        long at;
        try {
            at = allocator.allocate(cache, bytes);
        } finally {
            allocator.release(cache);
        }
        long rest = Nvm.getLong(head);
        Nvm.putLong(at, rest == Layout.NONE ? 0 : rest);
        Nvm.putInt(at + Layout.RECORD_KIND, kind);
        Nvm.putInt(at + Layout.RECORD_BYTES, bytes);
        Nvm.putInt(at + Layout.RECORD_SUM, sum(payload, unchecked));
        Nvm.putInt(at + Layout.RECORD_LAST, rest == Layout.NONE ? 1 : 0);
        Nvm.putBytes(at + Layout.RECORD_PAYLOAD, payload);
        Nvm.writeBack(at, bytes);
        Nvm.fence();
        Nvm.putLongDurably(head, at);
        return at;
    }

    /**
     * Takes the class record {@code r}, of which there is no replica, out of the list: one store, before which the record that leads to it may be the last. The caller is
     * inside the gate, or alone.
     */
    public static synchronized void removeClass(ClassRecord r) {
        long link = Layout.CLASSES;
        while (Nvm.getLong(link) != r.at) {
            link = Nvm.getLong(link);
        }
        long rest = Nvm.getLong(r.at);
        if (rest == 0 && link != Layout.CLASSES) {
            Nvm.putInt(link + Layout.RECORD_LAST, 1);
            Nvm.writeBack(link + Layout.RECORD_LAST, 4);
            Nvm.fence();
        }
        Nvm.putLongDurably(link, rest == 0 && link == Layout.CLASSES ? Layout.NONE : rest);
    }

    /** The record behind the one at {@code at}; {@link Layout#NONE}: none. Only a record that may be the last one leads nowhere. */
    private static long next(String pool, long at) {
        long next = Nvm.getLong(at);
        int last = Nvm.getInt(at + Layout.RECORD_LAST);
        if (last != 0 && last != 1 || next == 0 && last == 0) {
            throw damaged(pool, at);
        }
        return next == 0 ? Layout.NONE : next;
    }

    private static int sum(byte[] payload, int from) {
        CRC32C crc = new CRC32C();
        crc.update(payload, from, payload.length - from);
        return (int) crc.getValue();
    }

    public static List<ClassRecord> classes(String pool, long frontier) {
        List<ClassRecord> all = new ArrayList<>();
        for (long at = Nvm.getLong(Layout.CLASSES); at != Layout.NONE; at = next(pool, at)) {
            In in = open(pool, at, Layout.KIND_CLASS, 0, frontier, all.size());
            int index = in.u32();
            int form = in.u32();
            int instanceBytes = in.u32();
            int n = in.u32();
            String name = in.text();
            List<Field> fields = new ArrayList<>();
            for (int i = 0; i < n; i++) {
                fields.add(new Field(in.u32(), type(in.u32()), in.text(), in.text(), in.text()));
            }
            if (index < 1 || form < 0 || form > Layout.FORM_NAMED) {
                throw damaged(pool, at);
            }
            String tail = in.isAtEnd() ? "" : in.text();
            int hash = hashIn(tail);
            all.add(new ClassRecord(at, in.recordBytes, index, form, instanceBytes, name, fields, hash < 0 ? tail : tail.substring(0, hash),
                hash < 0 ? "" : tail.substring(hash + 1)));
        }
        return all;
    }

    /** References to arrays may be told from others; here they are all {@code L}. */
    private static char type(int saved) {
        return saved == '[' ? 'L' : (char) saved;
    }

    public static List<RootRecord> roots(String pool, long frontier) {
        List<RootRecord> all = new ArrayList<>();
        for (long at = Nvm.getLong(Layout.ROOTS); at != Layout.NONE; at = next(pool, at)) {
            In in = open(pool, at, Layout.KIND_ROOT, 8, frontier, all.size());
            in.u32();
            in.u32();
            all.add(new RootRecord(at, in.recordBytes, in.text(), in.text(), in.text()));
        }
        return all;
    }

    private static In open(String pool, long at, int kind, int unchecked, long frontier, int seen) {
        if (at < Layout.HEAP || at % 16 != 0 || at + Layout.RECORD_PAYLOAD > frontier || seen > frontier / 32) {
            throw damaged(pool, at);
        }
        int bytes = Nvm.getInt(at + Layout.RECORD_BYTES);
        if (Nvm.getInt(at + Layout.RECORD_KIND) != kind || bytes < Layout.RECORD_PAYLOAD + 8 || at + bytes > frontier) {
            throw damaged(pool, at);
        }
        byte[] payload = Nvm.getBytes(at + Layout.RECORD_PAYLOAD, bytes - Layout.RECORD_PAYLOAD);
        if (Nvm.getInt(at + Layout.RECORD_SUM) != sum(payload, unchecked)) {
            throw damaged(pool, at);
        }
        return new In(pool, at, bytes, payload);
    }

    private static PoolException damaged(String pool, long at) {
        return new PoolException(Reason.DAMAGED, pool + ": the record at " + at + " is damaged; restore the file from a copy");
    }

    /** Writes a payload. */
    private static final class Out {
        private final ByteArrayOutputStream bytes = new ByteArrayOutputStream();

        Out u32(int v) {
            for (int i = 0; i < 32; i += 8) {
                bytes.write(v >>> i);
            }
            return this;
        }

        Out text(String s) {
            byte[] utf8 = s.getBytes(StandardCharsets.UTF_8);
            u32(utf8.length);
            bytes.write(utf8, 0, utf8.length);
            while (bytes.size() % 4 != 0) {
                bytes.write(0);
            }
            return this;
        }

        byte[] bytes() {
            return bytes.toByteArray();
        }
    }

    /** Reads a payload. */
    private static final class In {
        private final String pool;
        private final long at;
        private final int recordBytes;
        private final byte[] bytes;
        private int next;

        In(String pool, long at, int recordBytes, byte[] bytes) {
            this.pool = pool;
            this.at = at;
            this.recordBytes = recordBytes;
            this.bytes = bytes;
        }

        int u32() {
            if (next + 4 > bytes.length) {
                throw damaged(pool, at);
            }
            next += 4;
            return bytes[next - 4] & 255 | (bytes[next - 3] & 255) << 8 | (bytes[next - 2] & 255) << 16 | bytes[next - 1] << 24;
        }

        /** Whether nothing but padding is left. */
        boolean isAtEnd() {
            return bytes.length - next < 4;
        }

        String text() {
            int n = u32();
            if (n < 0 || next + n > bytes.length) {
                throw damaged(pool, at);
            }
            String s = new String(bytes, next, n, StandardCharsets.UTF_8);
            next = next + n + 3 & -4;
            return s;
        }
    }
}
