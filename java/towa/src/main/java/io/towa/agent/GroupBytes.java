package io.towa.agent;

import org.objectweb.asm.ClassWriter;
import org.objectweb.asm.MethodVisitor;
import org.objectweb.asm.Opcodes;

/** Class files of barrier classes. Always true: the empty and the full form have the same members, so one can be redefined as the other. */
final class GroupBytes {
    private static final String BARRIER = "io/towa/barrier/Barrier";
    private static final String O = "Ljava/lang/Object;";
    private static final String[] BEFORE = {O, "I", "J", "F", "D"};

    private GroupBytes() {}

    static byte[] make(String name, boolean on) {
        ClassWriter cw = new ClassWriter(ClassWriter.COMPUTE_MAXS);
        cw.visit(Opcodes.V21, Opcodes.ACC_PUBLIC | Opcodes.ACC_FINAL | Opcodes.ACC_SUPER | Opcodes.ACC_SYNTHETIC, name, null,
            "java/lang/Object", null);
        method(cw, on, "pre", "(" + O + O + "I)V", Opcodes.ALOAD, Opcodes.ILOAD);
        method(cw, on, "post", "(" + O + "I)V", Opcodes.ILOAD, -1);
        method(cw, on, "after", "(" + O + "II)V", Opcodes.ILOAD, Opcodes.ILOAD);
        int[] loads = {Opcodes.ALOAD, Opcodes.ILOAD, Opcodes.LLOAD, Opcodes.FLOAD, Opcodes.DLOAD};
        for (int i = 0; i < BEFORE.length; i++) method(cw, on, "before", "(" + O + BEFORE[i] + "I)I", loads[i], Opcodes.ILOAD);
        cw.visitEnd();
        return cw.toByteArray();
    }

    private static void method(ClassWriter cw, boolean on, String name, String desc, int second, int third) {
        MethodVisitor mv = cw.visitMethod(Opcodes.ACC_PUBLIC | Opcodes.ACC_STATIC, name, desc, null, null);
        mv.visitAnnotation("Ljdk/internal/vm/annotation/ForceInline;", true).visitEnd();
        mv.visitCode();
        boolean value = desc.endsWith("I");
        if (on) {
            mv.visitVarInsn(Opcodes.ALOAD, 0);
            mv.visitVarInsn(second, 1);
            if (third >= 0) mv.visitVarInsn(third, second == Opcodes.LLOAD || second == Opcodes.DLOAD ? 3 : 2);
            mv.visitMethodInsn(Opcodes.INVOKESTATIC, BARRIER, name, desc, false);
        } else if (value) {
            mv.visitInsn(Opcodes.ICONST_0);
        }
        mv.visitInsn(value ? Opcodes.IRETURN : Opcodes.RETURN);
        mv.visitMaxs(0, 0);
        mv.visitEnd();
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
