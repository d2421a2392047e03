package io.towa.pool;

import java.util.Arrays;

/** Which bytes of the pool a section has logged: a set of words (positions that are multiples of 8), each with a mask of its bytes. */
final class LoggedBytes {
    private static final int SMALL = 256;

    private long[] words = new long[SMALL];
    private byte[] masks = new byte[SMALL];
    private int count;

    /** The bytes of the word at {@code word} that lie in [from, to). */
    static int mask(long word, long from, long to) {
        int first = (int) Math.max(0, from - word);
        int end = (int) Math.min(8, to - word);
        return (1 << end) - (1 << first);
    }

    private static int slot(long[] words, long word) {
        int i = (int) ((word >>> 3) * 0x9E3779B97F4A7C15L >>> 32) & words.length - 1;
        while (words[i] != 0 && words[i] != word) {
            i = i + 1 & words.length - 1;
        }
        return i;
    }

    int get(long word) {
        return masks[slot(words, word)] & 0xff;
    }

    void add(long word, int mask) {
        if (2 * count >= words.length) {
            grow();
        }
        int i = slot(words, word);
        if (words[i] == 0) {
            words[i] = word;
            count++;
        }
        masks[i] |= (byte) mask;
    }

    /** None of the {@code bytes} bytes at {@code at}, which lie in one word, is logged any more. */
    void remove(long at, int bytes) {
        masks[slot(words, at & -8)] &= (byte) ~mask(at & -8, at, at + bytes);
    }

    private void grow() {
        long[] more = new long[2 * words.length];
        byte[] moreMasks = new byte[more.length];
        for (int i = 0; i < words.length; i++) {
            if (words[i] != 0) {
                int to = slot(more, words[i]);
                more[to] = words[i];
                moreMasks[to] = masks[i];
            }
        }
        words = more;
        masks = moreMasks;
    }

    void clear() {
        if (words.length > 1 << 12) {
            words = new long[SMALL];
            masks = new byte[SMALL];
        } else if (count > 0) {
            Arrays.fill(words, 0);
            Arrays.fill(masks, (byte) 0);
        }
        count = 0;
    }
}
