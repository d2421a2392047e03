package io.towa.graph;

import io.towa.medium.Nvm;
import java.util.Arrays;
import java.util.List;
import java.util.TreeMap;

/**
 * The trace of a run: stores, write-backs and fences in order, and between them where the script was.
 *
 * <p>One write-back or fence of the program can be left out ({@link #without}): by the line of the source that asks for it.
 */
final class CrashRecorder implements Nvm.Recorder {
    static final byte STORE = 1;
    static final byte WRITE_BACK = 2;
    static final byte FENCE = 3;
    /** The state of the pool that counts changes from one to the next, by what is done up to the next such event. */
    static final byte STATE = 4;

    byte[] types = new byte[1 << 12];
    long[] at = new long[1 << 12];
    long[] bits = new long[1 << 12];
    int count;
    /** Sites of write-backs and fences, with how often each was passed. */
    final TreeMap<String, Integer> sites = new TreeMap<>();
    private final String without;

    /** @param without a name of {@link #sites}; null: leave out nothing */
    CrashRecorder(String without) {
        this.without = without;
    }

    private synchronized void add(byte type, long a, long b) {
        if (count == types.length) {
            types = Arrays.copyOf(types, 2 * count);
            at = Arrays.copyOf(at, 2 * count);
            bits = Arrays.copyOf(bits, 2 * count);
        }
        types[count] = type;
        at[count] = a;
        bits[count] = b;
        count++;
    }

    @Override
    public void store(long where, long value, int bytes) {
        add(STORE, where << 4 | bytes, value);
    }

    @Override
    public void writeBack(long where, long bytes) {
        if (counts("writeBack")) {
            add(WRITE_BACK, where, bytes);
        }
    }

    @Override
    public void fence() {
        if (counts("fence")) {
            add(FENCE, 0, 0);
        }
    }

    /** From here on the pool holds the state before, or that of number {@code state}. */
    void state(long state) {
        add(STATE, state, 0);
    }

    private boolean counts(String what) {
        List<StackWalker.StackFrame> frames = StackWalker.getInstance().walk(s -> s
            .filter(f -> !f.getClassName().equals(CrashRecorder.class.getName())).limit(3).toList());
        // Nvm.writeBack, or Nvm.putLongDurably above it, and who called that.
        boolean word = frames.get(1).getMethodName().equals("putLongDurably");
        StackWalker.StackFrame from = frames.get(word ? 2 : 1);
        String name = from.getFileName().replace(".java", "") + "." + from.getMethodName() + ":" + from.getLineNumber()
            + (word ? " putLongDurably's " : " ") + what;
        synchronized (this) {
            sites.merge(name, 1, Integer::sum);
        }
        return !name.equals(without);
    }
}
