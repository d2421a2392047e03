package io.towa.agent;

import java.nio.charset.StandardCharsets;

/**
 * Reads a class file just far enough to say which of its methods need weaving, so that the others are copied unparsed.
 *
 * <p>Always true: says "no" of a method only if it contains no store to a field or array element and no call that {@link Calls} knows or
 * that goes to a native method of the same class with an array among its arguments; or if it calls a barrier, so it has been woven before. Damaged files end in an exception of the array kind.
 */
final class ClassScan {
    /** Lengths of instructions by opcode from 0; '0' stands for the three of variable length. */
    private static final String LENGTHS =
        "11111111111111112323322222111111111111111111111111111122222111111111111111111111111111111111111111111"
        + "11111111111111111111111111111113111111111111111111113333333333333333200111111333333355323113311043355";

    /** What is known of a field or method that the constant pool refers to; 0: nothing yet. */
    private static final byte NEEDS_NOT = 1;
    private static final byte NEEDS = 2;
    private static final byte BARRIER = 3;

    /** Bytes of code for one store to a field: 8 to 12. */
    private static final int PUT = 10;

    final byte[] b;
    final int version;
    final int access;
    final String name;
    final String superName;
    boolean rootAnnotations;
    /** A class of the boot loader: it refers to no others, and of those only data classes have durable instances. */
    private boolean onlyData;
    /** By the order of methods in the file, filled by {@link #scanCode}. */
    boolean[] needs;
    int[] maxLocals;
    /** Bytes of code, and about how many more when woven. */
    int[] length;
    int[] growth;
    /** Names + descriptors of native methods with an array among their arguments. */
    private String[] natives = new String[0];
    private final int[] cp;
    private final byte[] calls;
    private int fieldsAt;
    private int methodsAt;

    ClassScan(byte[] bytes) {
        b = bytes;
        version = u2(6);
        int n = u2(8);
        cp = new int[n];
        calls = new byte[n];
        int at = 10;
        for (int i = 1; i < n; i++) {
            cp[i] = at + 1;
            int tag = b[at];
            if (tag == 1) {
                int length = u2(at + 1);
                if (length == 21 || length == 17) lookForRoot(at + 3, length);
                at += 3 + length;
            } else if (tag == 5 || tag == 6) {
                at += 9;
                i++;
            } else if (tag == 7 || tag == 8 || tag == 16 || tag == 19 || tag == 20) {
                at += 3;
            } else {
                at += tag == 15 ? 4 : 5;
            }
        }
        access = u2(at);
        name = className(u2(at + 2));
        superName = u2(at + 4) == 0 ? null : className(u2(at + 4));
        fieldsAt = at + 8 + 2 * u2(at + 6);
        methodsAt = skipMembers(fieldsAt);
    }

    private void lookForRoot(int at, int length) {
        if (b[at] != 'L' || b[at + length - 1] != ';') return;
        String s = new String(b, at, length, StandardCharsets.ISO_8859_1);
        if (s.equals("Lio/towa/DurableRoot;") || s.equals("Lrbp/durableroot;")) rootAnnotations = true;
    }

    private int u2(int at) {
        return (b[at] & 255) << 8 | b[at + 1] & 255;
    }

    private int u4(int at) {
        return u2(at) << 16 | u2(at + 2);
    }

    private String utf(int index) {
        return new String(b, cp[index] + 2, u2(cp[index]), StandardCharsets.UTF_8);
    }

    private String className(int index) {
        return utf(u2(cp[index]));
    }

    private boolean utfIs(int index, String s) {
        int at = cp[index];
        if (u2(at) != s.length()) return false;
        for (int i = 0; i < s.length(); i++) if (b[at + 2 + i] != s.charAt(i)) return false;
        return true;
    }

    private int skipAttributes(int at) {
        int n = u2(at);
        at += 2;
        for (int i = 0; i < n; i++) at += 6 + u4(at + 2);
        return at;
    }

    private int skipMembers(int at) {
        int n = u2(at);
        at += 2;
        for (int i = 0; i < n; i++) at = skipAttributes(at + 6);
        return at;
    }

    /** Instance fields, volatile ones or the others, as name + descriptor. */
    String[] instanceFields(boolean volatiles) {
        int n = u2(fieldsAt);
        String[] all = new String[n];
        int count = 0;
        int at = fieldsAt + 2;
        for (int i = 0; i < n; i++) {
            int flags = u2(at);
            boolean isVolatile = (flags & 0x40) != 0;
            if ((flags & 8) == 0 && isVolatile == volatiles) all[count++] = utf(u2(at + 2)) + utf(u2(at + 4));
            at = skipAttributes(at + 6);
        }
        String[] fit = new String[count];
        System.arraycopy(all, 0, fit, 0, count);
        return fit;
    }

    /** Fills {@link #needs} and {@link #maxLocals}; does any method need weaving? */
    boolean scanCode(boolean statics, boolean boot) {
        onlyData = boot;
        findNatives();
        int n = u2(methodsAt);
        needs = new boolean[n];
        maxLocals = new int[n];
        length = new int[n];
        growth = new int[n];
        boolean any = false;
        String plain = boot ? WholeMethods.withoutStores(name) : null;
        int at = methodsAt + 2;
        for (int i = 0; i < n; i++) {
            boolean changed = plain != null && utfIs(u2(at + 2), plain);
            int attributes = u2(at + 6);
            at += 8;
            for (int k = 0; k < attributes; k++) {
                if (utfIs(u2(at), "Code")) {
                    maxLocals[i] = u2(at + 8);
                    length[i] = u4(at + 10);
                    growth[i] = changed ? PUT : growth(at + 14, length[i], statics);
                    needs[i] = growth[i] != 0;
                    any |= needs[i];
                }
                at += 6 + u4(at + 2);
            }
        }
        return any;
    }

    private void findNatives() {
        int n = u2(methodsAt);
        int at = methodsAt + 2;
        for (int i = 0; i < n; i++) {
            if ((u2(at) & 0x100) != 0) {
                String desc = utf(u2(at + 4));
                if (desc.lastIndexOf('[', desc.indexOf(')')) >= 0) {
                    String[] more = new String[natives.length + 1];
                    System.arraycopy(natives, 0, more, 0, natives.length);
                    more[natives.length] = utf(u2(at + 2)) + desc;
                    natives = more;
                }
            }
            at = skipAttributes(at + 6);
        }
    }

    /** Is it a native method of this class with an array among its arguments? */
    boolean ownNative(String methodName, String desc) {
        String s = null;
        for (int i = 0; i < natives.length; i++) {
            if (s == null) s = methodName + desc;
            if (natives[i].equals(s)) return true;
        }
        return false;
    }

    /** About how many bytes of code the barriers of a method take; 0 only if it needs none, or has them. */
    private int growth(int start, int bytes, boolean statics) {
        int more = 0;
        int end = start + bytes;
        for (int at = start; at < end; ) {
            int op = b[at] & 255;
            if (op >= 79 && op <= 86) {
                more += 2;
            } else if (op == 181) {
                if (putNeeds(u2(at + 1))) more += PUT;
            } else if (op == 179) {
                if (statics) more += PUT;
            } else if (op >= 182 && op <= 185) {
                byte call = call(u2(at + 1));
                if (call == BARRIER) return 0;
                if (call == NEEDS) more++;
            }
            int step = LENGTHS.charAt(op) - '0';
            at += step != 0 ? step : variable(at, op, start);
        }
        return more;
    }

    private int variable(int at, int op, int start) {
        if (op == 196) return (b[at + 1] & 255) == 132 ? 6 : 4;
        int p = at + 4 - (at - start & 3);
        if (op == 170) return p + 12 + 4 * (u4(p + 8) - u4(p + 4) + 1) - at;
        return p + 8 + 8 * u4(p + 4) - at;
    }

    private boolean putNeeds(int ref) {
        if (calls[ref] == 0) {
            String owner = className(u2(cp[ref]));
            int nameAndType = cp[u2(cp[ref] + 2)];
            calls[ref] = leftOut(owner, utf(u2(nameAndType))) ? NEEDS_NOT : NEEDS;
        }
        return calls[ref] == NEEDS;
    }

    /**
     * Whether no replica is known to have that instance field, so that stores to it need no barrier: fields of the JDK's classes that are no
     * data, and those that {@link Skip} lists. Of a transient field of another class this is not known: a subclass that writes its serial
     * form itself makes it data.
     */
    boolean leftOut(String owner, String field) {
        return onlyData && (!Skip.mayHoldData(owner) || Skip.leftOut(owner, field));
    }

    private byte call(int ref) {
        if (calls[ref] == 0) calls[ref] = kind(ref);
        return calls[ref];
    }

    private byte kind(int ref) {
        int at = cp[ref];
        int nameAndType = cp[u2(at + 2)];
        String owner = className(u2(at));
        if (owner.startsWith(Groups.PACKAGE)) return BARRIER;
        if (natives.length != 0 && owner.equals(name) && ownNative(utf(u2(nameAndType)), utf(u2(nameAndType + 2)))) return NEEDS;
        return Calls.ownerKnown(owner) && Calls.find(owner, utf(u2(nameAndType)), utf(u2(nameAndType + 2))) != null ? NEEDS : NEEDS_NOT;
    }
}
