package io.towa.agent;

import org.objectweb.asm.Opcodes;

/**
 * Follows the operand stack and the local variables along straight-line code, to know where the receiver of a store is an object that nobody else can have seen:
 * the object under construction, or an array just made; and where what is stored is null.
 *
 * <p>Always true: a slot says "this" or "array k" only if that value was used since its making for nothing but stores into it, loads from
 * it, copies into and out of it, and tests. At every join of control (a stack map frame; in class files without them every label) all is forgotten. Slots below
 * what is known are unknown, and so are local variables beyond.
 */
final class Straight {
    private static final int OTHER = 0;
    private static final int THIS = 1;
    private static final int NULL = 2;

    private int[] stack = new int[32];
    private int depth;
    private int[] locals = new int[16];
    /** So many of them may be known. */
    private int known;
    private int arrays = NULL;
    /** The object under construction is seen by nobody else. */
    boolean thisFresh;

    void forget() {
        depth = 0;
        known = 0;
        thisFresh = false;
    }

    private int peek(int below) {
        return below < depth ? stack[depth - 1 - below] : OTHER;
    }

    /** Is the slot that far below the top an object nobody else has? */
    boolean fresh(int below) {
        int kind = peek(below);
        return kind == THIS ? thisFresh : kind != OTHER;
    }

    /** Is the top null, whatever happens? */
    boolean isNull() {
        return peek(0) == NULL;
    }

    void push(int kind) {
        if (depth == stack.length) stack = longer(stack);
        stack[depth++] = kind;
    }

    private static int[] longer(int[] a) {
        int[] more = new int[a.length * 2];
        System.arraycopy(a, 0, more, 0, a.length);
        return more;
    }

    void pushOther(int n) {
        for (int i = 0; i < n; i++) push(OTHER);
    }

    void pushThis() {
        push(THIS);
    }

    void pushArray() {
        push(++arrays);
    }

    /** Pops by a use that lets nobody else see the values. */
    void drop(int n) {
        depth = Math.max(0, depth - n);
    }

    /** Pops by a use after which others may have the values. */
    void pop(int n) {
        for (int i = 0; i < n; i++) {
            int kind = peek(0);
            drop(1);
            if (kind == THIS) thisFresh = false;
            else if (kind > NULL) escape(kind);
        }
    }

    private void escape(int array) {
        for (int i = 0; i < depth; i++) if (stack[i] == array) stack[i] = OTHER;
        for (int i = 0; i < known; i++) if (locals[i] == array) locals[i] = OTHER;
    }

    /** Pushes what a local variable holds. */
    void load(int var) {
        push(var < known ? locals[var] : OTHER);
    }

    /** Pops into a local variable, which takes that many slots. */
    void store(int var, int size) {
        int kind = size == 1 ? peek(0) : OTHER;
        if (kind >= NULL) drop(1);
        else pop(size);
        for (int i = var; i < var + size; i++) {
            while (known <= i) {
                if (known == locals.length) locals = longer(locals);
                locals[known++] = OTHER;
            }
            locals[i] = kind == THIS ? OTHER : kind;
        }
    }

    /** dup and swap forms: the top {@code n} slots are copied below {@code under} further ones. */
    private void dup(int n, int under) {
        int total = n + under;
        int[] top = new int[total];
        for (int i = 0; i < total; i++) top[total - 1 - i] = peek(i);
        drop(total);
        for (int i = 0; i < n; i++) push(top[under + i]);
        for (int i = 0; i < total; i++) push(top[i]);
    }

    /** An instruction without operands. */
    void insn(int op) {
        switch (op) {
            case Opcodes.POP: drop(1); return;
            case Opcodes.POP2: drop(2); return;
            case Opcodes.DUP: dup(1, 0); return;
            case Opcodes.DUP_X1: dup(1, 1); return;
            case Opcodes.DUP_X2: dup(1, 2); return;
            case Opcodes.DUP2: dup(2, 0); return;
            case Opcodes.DUP2_X1: dup(2, 1); return;
            case Opcodes.DUP2_X2: dup(2, 2); return;
            case Opcodes.SWAP: swap(); return;
            case Opcodes.ARRAYLENGTH: drop(1); push(OTHER); return;
            case Opcodes.MONITORENTER: case Opcodes.MONITOREXIT: pop(1); return;
            case Opcodes.ACONST_NULL: push(NULL); return;
            case Opcodes.NOP: return;
            default: break;
        }
        if (op >= Opcodes.IALOAD && op <= Opcodes.SALOAD) {
            drop(2);
            pushOther(op == Opcodes.LALOAD || op == Opcodes.DALOAD ? 2 : 1);
        } else if (op >= Opcodes.IASTORE && op <= Opcodes.SASTORE) {
            pop(op == Opcodes.LASTORE || op == Opcodes.DASTORE ? 2 : 1);
            drop(2);
        } else if (op >= Opcodes.IRETURN && op <= Opcodes.RETURN || op == Opcodes.ATHROW) {
            forget();
        } else if (op <= Opcodes.DCONST_1) {
            boolean two = op == Opcodes.LCONST_0 || op == Opcodes.LCONST_1 || op >= Opcodes.DCONST_0;
            pushOther(two ? 2 : 1);
        } else {
            arithmetic(op);
        }
    }

    private void swap() {
        int a = peek(0);
        int b = peek(1);
        drop(2);
        push(a);
        push(b);
    }

    /** From IADD to DCMPG: only numbers, so only how many slots matters. */
    private void arithmetic(int op) {
        if (op <= Opcodes.DREM) {
            boolean two = (op & 1) == 1;
            drop(two ? 4 : 2);
            pushOther(two ? 2 : 1);
        } else if (op <= Opcodes.DNEG) {
            return;
        } else if (op <= Opcodes.LUSHR) {
            drop(1);
        } else if (op <= Opcodes.LXOR) {
            drop((op & 1) == 1 ? 2 : 1);
        } else if (op <= Opcodes.I2S) {
            convert(op);
        } else {
            drop(op == Opcodes.FCMPL || op == Opcodes.FCMPG ? 2 : 4);
            push(OTHER);
        }
    }

    private void convert(int op) {
        boolean from = op >= Opcodes.L2I && op <= Opcodes.L2D || op >= Opcodes.D2I && op <= Opcodes.D2F;
        boolean to = op == Opcodes.I2L || op == Opcodes.I2D || op == Opcodes.L2D || op == Opcodes.F2L || op == Opcodes.F2D
            || op == Opcodes.D2L;
        drop(from ? 2 : 1);
        pushOther(to ? 2 : 1);
    }

    void jump(int op) {
        if (op == Opcodes.GOTO || op == Opcodes.JSR) forget();
        else if (op >= Opcodes.IF_ICMPEQ && op <= Opcodes.IF_ACMPNE) drop(2);
        else drop(1);
    }
}
