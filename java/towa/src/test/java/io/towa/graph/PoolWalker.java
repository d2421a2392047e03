package io.towa.graph;

import io.towa.pool.Layout;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.util.Arrays;
import java.util.zip.CRC32C;

/**
 * Reads the image of a pool without loading a class: undoes what its undo log names, and walks from the roots.
 *
 * <p>It says what is wrong with the image ({@link Broken}), or a number for the graph that it holds: equal graphs have equal numbers. What
 * a store may never change unseen is part of it: classes, identity hashes, lengths, values, and which reference leads where.
 */
final class PoolWalker {
    /** The image is not one that a crash may leave. */
    static final class Broken extends RuntimeException {
        Broken(String what) {
            super(what, null, false, false);
        }
    }

    private static final int ARRAY = -1;

    private final byte[] image;
    private final ByteBuffer b;
    private final CRC32C crc = new CRC32C();
    private long frontier;
    private long cycle;
    /** By class index: number of the class' name and fields, size of instances or of elements, offsets of references. */
    private long[] classHash = new long[64];
    private int[] classForm = new int[64];
    private int[] classBytes = new int[64];
    private int[][] classReferences = new int[64][];
    private long[] undone = new long[64];
    private int undos;
    private long hash;
    /** Objects that were reached, in order, and where to find their number: open addressing. */
    private long[] reached = new long[256];
    private long[] table = new long[1024];
    private int[] numbers = new int[1024];
    private int count;

    PoolWalker(byte[] image) {
        this.image = image;
        b = ByteBuffer.wrap(image).order(ByteOrder.LITTLE_ENDIAN);
    }

    /** The number of the graph; the image is as before when this returns. */
    long walk() {
        undos = 0;
        try {
            frontier = b.getLong((int) Layout.FRONTIER);
            cycle = b.getLong((int) Layout.CYCLE);
            check(frontier >= Layout.HEAP && frontier <= image.length && frontier % 4096 == 0, "frontier", frontier);
            rollBack();
            classes();
            hash = 17;
            Arrays.fill(table, 0);
            count = 0;
            roots();
            for (int i = 0; i < count; i++) {
                object(reached[i]);
            }
            return hash;
        } finally {
            for (int i = undos - 1; i >= 0; i--) {
                b.putLong((int) undone[2 * i], undone[2 * i + 1]);
            }
        }
    }

    /** Numbers of the object that the first root refers to, as of {@link #walk}; the image is checked. */
    long[] rootLongs(int... offsets) {
        walk();
        frontier = b.getLong((int) Layout.FRONTIER);
        undos = 0;
        rollBack();
        long[] values = new long[offsets.length];
        for (int i = 0; i < offsets.length; i++) {
            values[i] = word(reached[0] + offsets[i]);
        }
        return values;
    }

    private static void check(boolean good, String what, long at) {
        if (!good) {
            throw new Broken(what + " at " + at);
        }
    }

    private long word(long at) {
        return b.getLong((int) at);
    }

    private long first(long head) {
        check(word(head) != 0, "head", head);
        return word(head) == 1 ? 0 : word(head);
    }

    private int half(long at) {
        return b.getInt((int) at);
    }

    // ---- undo log, as docs/format.md has it

    private void rollBack() {
        long block = word(8232);
        long section = 0;
        for (boolean first = true; block != 1; first = false) {
            check(block >= Layout.HEAP && block % 4096 == 0 && block < frontier, "undo block", block);
            section = first ? word(block + 8) : section;
            if (word(block + 8) != section || word(block + 16) != 0x4f444e5541574f54L) {
                check(!first, "first undo block", block);
                return;
            }
            for (int i = 0; i < 127; i++) {
                long e = block + 32 + 32 * i;
                long sum = mix(mix(mix(mix(section) ^ word(e)) ^ word(e + 8)) ^ word(e + 16));
                if (sum != word(e + 24)) {
                    return;
                }
                undo(word(e), word(e + 8), half(e + 16));
            }
            block = word(block);
        }
    }

    private void undo(long at, long old, int bytes) {
        check(at >= Layout.HEAP && at + bytes <= frontier && at % bytes == 0, "undo entry", at);
        if (2 * undos + 2 > undone.length) {
            undone = Arrays.copyOf(undone, 2 * undone.length);
        }
        undone[2 * undos] = at & -8;
        undone[2 * undos + 1] = word(at & -8);
        undos++;
        for (int i = 0; i < bytes; i++) {
            image[(int) at + i] = (byte) (old >>> 8 * i);
        }
    }

    private static long mix(long z) {
        z = (z ^ z >>> 30) * 0xbf58476d1ce4e5b9L;
        z = (z ^ z >>> 27) * 0x94d049bb133111ebL;
        return z ^ z >>> 31;
    }

    // ---- records

    private int record(long at, int kind, int unchecked) {
        check(at >= Layout.HEAP && at % 16 == 0 && at + 32 <= frontier, "record", at);
        int bytes = half(at + 12);
        check(half(at + 8) == kind && bytes >= 32 && at + bytes <= frontier, "record's kind", at);
        crc.reset();
        crc.update(image, (int) at + 24 + unchecked, bytes - 24 - unchecked);
        check((int) crc.getValue() == half(at + 16), "record's checksum", at);
        return bytes;
    }

    private void classes() {
        Arrays.fill(classForm, -9);
        for (long at = first(Layout.CLASSES); at != 0; at = word(at)) {
            record(at, Layout.KIND_CLASS, 0);
            int index = half(at + 24);
            int form = half(at + 28);
            check(index > 0 && index < classForm.length && classForm[index] == -9, "class index", at);
            int fields = half(at + 36);
            int nameBytes = half(at + 40);
            crc.reset();
            crc.update(image, (int) at + 44, nameBytes);
            classHash[index] = crc.getValue();
            classForm[index] = form;
            classBytes[index] = half(at + 32);
            long p = at + 44 + (nameBytes + 3 & -4);
            int[] references = new int[fields];
            int n = 0;
            for (int i = 0; i < fields; i++) {
                if (half(p + 4) == 'L') {
                    references[n++] = half(p);
                }
                p += 8;
                for (int s = 0; s < 3; s++) {
                    p += 4 + (half(p) + 3 & -4);
                }
            }
            classReferences[index] = Arrays.copyOf(references, n);
            if (form == Layout.FORM_ARRAY) {
                char element = (char) image[(int) at + 45];
                classBytes[index] = element == 'L' || element == '[' ? ARRAY : ClassInfo.bytes(element);
            }
        }
    }

    private void roots() {
        for (long at = first(Layout.ROOTS); at != 0; at = word(at)) {
            int bytes = record(at, Layout.KIND_ROOT, 8);
            if (word(at + 24) != 0) {
                crc.reset();
                crc.update(image, (int) at + 32, bytes - 32);
                add(crc.getValue());
                reference(word(at + 24));
            }
        }
    }

    // ---- replicas

    private void add(long v) {
        hash = (hash ^ v) * 0x9E3779B97F4A7C15L;
        hash ^= hash >>> 29;
    }

    private int slot(long at) {
        int i = (int) (at >>> 4) * 0x9E3779B1 >>> 8 & table.length - 1;
        while (table[i] != 0 && table[i] != at) {
            i = i + 1 & table.length - 1;
        }
        return i;
    }

    private void reference(long to) {
        if (to == 0) {
            add(0);
            return;
        }
        check(to >= Layout.HEAP && to % 16 == 0 && to + 24 <= frontier, "reference to", to);
        int i = slot(to);
        if (table[i] == 0) {
            if (count == reached.length) {
                reached = Arrays.copyOf(reached, 2 * count);
            }
            table[i] = to;
            numbers[i] = count;
            reached[count++] = to;
            check(2 * count < table.length, "too many objects", count);
        }
        add(numbers[i] + 1);
    }

    private void object(long at) {
        int index = half(at);
        check(index > 0 && index < classForm.length && classForm[index] != -9, "replica's class", at);
        check(half(at + 4) <= cycle, "replica of a cycle to come", at);
        int length = half(at + 20);
        long bytes = classForm[index] == Layout.FORM_OBJECT ? classBytes[index]
            : 24 + (classForm[index] == Layout.FORM_ARRAY ? (classBytes[index] == ARRAY ? 8L : classBytes[index]) : 1L) * length;
        check(length >= 0 && at + bytes <= frontier, "replica's length", at);
        add(classHash[index]);
        add(word(at + 16));
        if (classForm[index] == Layout.FORM_ARRAY && classBytes[index] == ARRAY) {
            for (int i = 0; i < length; i++) {
                reference(word(at + 24 + 8L * i));
            }
            return;
        }
        int next = 0;
        int[] references = classForm[index] == Layout.FORM_OBJECT ? classReferences[index] : new int[0];
        for (long p = at + 24; p < at + bytes; p += 8) {
            if (next < references.length && at + references[next] == p) {
                reference(word(p));
                next++;
            } else if (p + 8 <= at + bytes) {
                add(word(p));
            } else {
                for (long q = p; q < at + bytes; q++) {
                    add(image[(int) q]);
                }
            }
        }
    }
}
