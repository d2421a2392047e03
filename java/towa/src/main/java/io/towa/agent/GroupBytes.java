package io.towa.agent;

import org.objectweb.asm.ClassWriter;
import org.objectweb.asm.Label;
import org.objectweb.asm.MethodVisitor;
import org.objectweb.asm.Opcodes;

/**
 * Class files of barrier classes.
 *
 * <p>Always true: the empty and the full form have the same members, so one can be redefined as the other. What a woven store calls looks at the header itself, at
 * most one more call deep: each call within it is work for the compilers at each store of the program, and the branch that a durable object takes has a profile of
 * its own in each class, so that C2 leaves out what no object of that group ever needs.
 */
final class GroupBytes {
    /** Kinds of arrays, in the order of the instructions that store to them; B is for boolean[], too, L for all arrays of references. */
    static final String KINDS = "IJFDLBCS";
    /** Of the method {@code store}, by kind; the instruction for bytes serves boolean[] alike. */
    static final String[] STORE_DESCS = {"([III)V", "([JIJ)V", "([FIF)V", "([DID)V", "([Ljava/lang/Object;ILjava/lang/Object;)V", "(Ljava/lang/Object;II)V", "([CII)V",
        "([SII)V"};
    private static final String BARRIER = "io/towa/barrier/Barrier";
    private static final String HEADER = "io/towa/barrier/Header";
    private static final String STORES = "io/towa/graph/Stores";
    private static final String ANNOTATIONS = "Ljdk/internal/vm/annotation/";
    private static final String O = "Ljava/lang/Object;";
    private static final String[] BEFORE = {O, "I", "J", "F", "D"};

    private GroupBytes() {}

    /** What stores to the fields of a group's classes call: {@code pre} and {@code post} around plain ones, {@code before} and {@code after} around volatile ones. */
    static byte[] make(String name, boolean on) {
        ClassWriter cw = begin(name);
        MethodVisitor mv = method(cw, "pre", "(" + O + O + "I)V", false);
        if (on) pre(mv);
        end(mv, Opcodes.RETURN);
        mv = method(cw, "post", "(" + O + "I)V", on);
        if (on) post(mv, "field");
        end(mv, Opcodes.RETURN);
        forward(cw, on, "after", "(" + O + "II)V", Opcodes.ILOAD, Opcodes.ILOAD);
        int[] loads = {Opcodes.ALOAD, Opcodes.ILOAD, Opcodes.LLOAD, Opcodes.FLOAD, Opcodes.DLOAD};
        for (int i = 0; i < BEFORE.length; i++) forward(cw, on, "before", "(" + O + BEFORE[i] + "I)I", loads[i], Opcodes.ILOAD);
        cw.visitEnd();
        return cw.toByteArray();
    }

    /**
     * What is called instead of the instruction that stores to arrays of that kind. It behaves as the instruction (the same exceptions, sub-int values cut as the
     * instruction cuts them), and its frame shows in no stack trace.
     */
    static byte[] makeArray(String name, int kind, boolean on) {
        ClassWriter cw = begin(name);
        MethodVisitor mv = method(cw, "store", STORE_DESCS[kind], on);
        mv.visitAnnotation(ANNOTATIONS + "Hidden;", true).visitEnd();
        char k = KINDS.charAt(kind);
        if (on && k == 'L') storeIfMarked(mv);
        if (k == 'B') {
            Label bytes = new Label();
            Label stored = new Label();
            mv.visitVarInsn(Opcodes.ALOAD, 0);
            mv.visitTypeInsn(Opcodes.INSTANCEOF, "[Z");
            mv.visitJumpInsn(Opcodes.IFEQ, bytes);
            element(mv, kind, "[Z");
            mv.visitJumpInsn(Opcodes.GOTO, stored);
            join(mv, bytes);
            element(mv, kind, "[B");
            join(mv, stored);
        } else {
            element(mv, kind, null);
        }
        if (on) post(mv, "element");
        end(mv, Opcodes.RETURN);
        cw.visitEnd();
        return cw.toByteArray();
    }

    private static void element(MethodVisitor mv, int kind, String cast) {
        mv.visitVarInsn(Opcodes.ALOAD, 0);
        if (cast != null) mv.visitTypeInsn(Opcodes.CHECKCAST, cast);
        mv.visitVarInsn(Opcodes.ILOAD, 1);
        char k = KINDS.charAt(kind);
        mv.visitVarInsn(k == 'L' ? Opcodes.ALOAD : k == 'J' ? Opcodes.LLOAD : k == 'F' ? Opcodes.FLOAD : k == 'D' ? Opcodes.DLOAD : Opcodes.ILOAD, 2);
        mv.visitInsn(Opcodes.IASTORE + kind);
    }

    private static ClassWriter begin(String name) {
        ClassWriter cw = new ClassWriter(ClassWriter.COMPUTE_MAXS);
        cw.visit(Opcodes.V21, Opcodes.ACC_PUBLIC | Opcodes.ACC_FINAL | Opcodes.ACC_SUPER | Opcodes.ACC_SYNTHETIC, name, null, "java/lang/Object", null);
        return cw;
    }

    private static MethodVisitor method(ClassWriter cw, String name, String desc, boolean reserved) {
        MethodVisitor mv = cw.visitMethod(Opcodes.ACC_PUBLIC | Opcodes.ACC_STATIC, name, desc, null, null);
        mv.visitAnnotation(ANNOTATIONS + "ForceInline;", true).visitEnd();
        // Where the stack ends: see Barrier.
        if (reserved) mv.visitAnnotation(ANNOTATIONS + "ReservedStackAccess;", true).visitEnd();
        mv.visitCode();
        return mv;
    }

    private static void end(MethodVisitor mv, int op) {
        mv.visitInsn(op);
        mv.visitMaxs(0, 0);
        mv.visitEnd();
    }

    private static void join(MethodVisitor mv, Label label) {
        mv.visitLabel(label);
        mv.visitFrame(Opcodes.F_SAME, 0, null, 0, null);
    }

    /** Before the object in local variable 0 refers to that in 1, perhaps null: it becomes durable if the first is, or the store does not happen. */
    private static void pre(MethodVisitor mv) {
        Label end = new Label();
        ifMarked(mv, end);
        mv.visitVarInsn(Opcodes.ALOAD, 0);
        mv.visitVarInsn(Opcodes.ALOAD, 1);
        mv.visitVarInsn(Opcodes.ILOAD, 2);
        mv.visitMethodInsn(Opcodes.INVOKESTATIC, STORES, "pre", "(" + O + O + "I)V", false);
        join(mv, end);
    }

    /** A marked array of references is stored to elsewhere, and that is all: what follows for one that is marked meanwhile is needed so rarely that C2 leaves it out. */
    private static void storeIfMarked(MethodVisitor mv) {
        Label not = new Label();
        ifMarked(mv, not);
        mv.visitVarInsn(Opcodes.ALOAD, 0);
        mv.visitVarInsn(Opcodes.ILOAD, 1);
        mv.visitVarInsn(Opcodes.ALOAD, 2);
        mv.visitMethodInsn(Opcodes.INVOKESTATIC, STORES, "store", STORE_DESCS[KINDS.indexOf('L')], false);
        mv.visitInsn(Opcodes.RETURN);
        join(mv, not);
    }

    /** Goes on if the object in local variable 0 is there, and marked. */
    private static void ifMarked(MethodVisitor mv, Label not) {
        mv.visitVarInsn(Opcodes.ALOAD, 0);
        mv.visitJumpInsn(Opcodes.IFNULL, not);
        mv.visitVarInsn(Opcodes.ALOAD, 0);
        mv.visitMethodInsn(Opcodes.INVOKESTATIC, HEADER, "marked", "(" + O + ")Z", false);
        mv.visitJumpInsn(Opcodes.IFEQ, not);
    }

    /** After a plain store to the object in local variable 0; what it was to is in 1. */
    private static void post(MethodVisitor mv, String what) {
        Label end = new Label();
        mv.visitVarInsn(Opcodes.ALOAD, 0);
        mv.visitMethodInsn(Opcodes.INVOKESTATIC, HEADER, "markedByNow", "(" + O + ")Z", false);
        mv.visitJumpInsn(Opcodes.IFEQ, end);
        mv.visitVarInsn(Opcodes.ALOAD, 0);
        mv.visitVarInsn(Opcodes.ILOAD, 1);
        mv.visitMethodInsn(Opcodes.INVOKESTATIC, STORES, what, "(" + O + "I)V", false);
        join(mv, end);
    }

    /** A method that, if it is on, is the one of that name of {@code Barrier}. */
    private static void forward(ClassWriter cw, boolean on, String name, String desc, int second, int third) {
        MethodVisitor mv = method(cw, name, desc, false);
        boolean value = desc.endsWith("I");
        if (on) {
            mv.visitVarInsn(Opcodes.ALOAD, 0);
            mv.visitVarInsn(second, 1);
            mv.visitVarInsn(third, second == Opcodes.LLOAD || second == Opcodes.DLOAD ? 3 : 2);
            mv.visitMethodInsn(Opcodes.INVOKESTATIC, BARRIER, name, desc, false);
        } else if (value) {
            mv.visitInsn(Opcodes.ICONST_0);
        }
        end(mv, value ? Opcodes.IRETURN : Opcodes.RETURN);
    }

    /** A switch that is on: but for the constant, the class file of the one in io.towa.barrier.Switch. */
    static byte[] makeSwitch(String kind) {
        String outer = "io/towa/barrier/Switch";
        String name = outer + '$' + kind;
        ClassWriter cw = new ClassWriter(0);
        cw.visit(Opcodes.V21, Opcodes.ACC_FINAL | Opcodes.ACC_SUPER, name, null, "java/lang/Object", null);
        cw.visitNestHost(outer);
        cw.visitInnerClass(name, outer, kind, Opcodes.ACC_FINAL | Opcodes.ACC_STATIC);
        MethodVisitor mv = cw.visitMethod(Opcodes.ACC_PRIVATE, "<init>", "()V", null, null);
        mv.visitCode();
        mv.visitVarInsn(Opcodes.ALOAD, 0);
        mv.visitMethodInsn(Opcodes.INVOKESPECIAL, "java/lang/Object", "<init>", "()V", false);
        mv.visitInsn(Opcodes.RETURN);
        mv.visitMaxs(1, 1);
        mv.visitEnd();
        mv = cw.visitMethod(Opcodes.ACC_STATIC, "on", "()Z", null, null);
        mv.visitAnnotation("Ljdk/internal/vm/annotation/ForceInline;", true).visitEnd();
        mv.visitCode();
        mv.visitInsn(Opcodes.ICONST_1);
        mv.visitInsn(Opcodes.IRETURN);
        mv.visitMaxs(1, 0);
        mv.visitEnd();
        cw.visitEnd();
        return cw.toByteArray();
    }

    /** Where the class' name stands in its constant pool; it stands there once. */
    static int find(byte[] in, String name) {
        for (int i = 0; ; i++) {
            int k = 0;
            while (k < name.length() && in[i + k] == name.charAt(k)) k++;
            if (k == name.length()) return i;
        }
    }
}
