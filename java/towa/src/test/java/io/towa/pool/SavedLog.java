package io.towa.pool;

import java.nio.ByteBuffer;
import java.nio.ByteOrder;

/** The undo log in an image of a pool. */
public final class SavedLog {
    private SavedLog() {}

    /** How many entries of its first block count: so many stores will be undone. */
    public static int entries(byte[] image) {
        ByteBuffer b = ByteBuffer.wrap(image).order(ByteOrder.LITTLE_ENDIAN);
        int block = (int) b.getLong((int) Layout.UNDO);
        int n = 0;
        while (block != Layout.NONE && n < UndoLog.PER_BLOCK && counts(b, b.getLong(block + UndoLog.SECTION), block + UndoLog.ENTRIES + n * UndoLog.ENTRY)) {
            n++;
        }
        return n;
    }

    private static boolean counts(ByteBuffer b, long section, int e) {
        return b.getLong(e + UndoLog.CHECK) == UndoLog.check(section, b.getLong(e), b.getLong(e + UndoLog.OLD), b.getLong(e + UndoLog.BYTES));
    }
}
