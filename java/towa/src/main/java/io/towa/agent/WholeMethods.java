package io.towa.agent;

import org.objectweb.asm.Label;
import org.objectweb.asm.MethodVisitor;
import org.objectweb.asm.Opcodes;

/**
 * Methods of the JDK's collections that pass through states in which entries stored long ago cannot be reached: a table is published before its nodes
 * have moved, a tree is rotated link by link. A crash there would lose them, so each of these methods is a section: whole or not at all.
 *
 * <pre>
 *   begin(this); try { what the method did } finally { end(this); }
 * </pre>
 */
final class WholeMethods {
    private static final String[] METHODS = {
        "java/util/HashMap.resize()[Ljava/util/HashMap$Node;",
        "java/util/HashMap.treeifyBin([Ljava/util/HashMap$Node;I)V",
        "java/util/HashMap$TreeNode.removeTreeNode(Ljava/util/HashMap;[Ljava/util/HashMap$Node;Z)V",
        "java/util/HashMap$TreeNode.putTreeVal(Ljava/util/HashMap;[Ljava/util/HashMap$Node;ILjava/lang/Object;Ljava/lang/Object;)Ljava/util/HashMap$TreeNode;",
        "java/util/TreeMap.rotateLeft(Ljava/util/TreeMap$Entry;)V",
        "java/util/TreeMap.rotateRight(Ljava/util/TreeMap$Entry;)V",
        "java/util/TreeMap.deleteEntry(Ljava/util/TreeMap$Entry;)V",
        "java/util/Hashtable.rehash()V",
        "java/util/IdentityHashMap.resize(I)Z",
        "java/util/IdentityHashMap.closeDeletion(I)V",
    };

    private WholeMethods() {}

    /** {@code next}, or what makes a section of the method that is written to it. */
    static MethodVisitor around(MethodVisitor next, String owner, String name, String desc) {
        if (!owner.startsWith("java/util/")) return next;
        String whole = owner + "." + name + desc;
        for (int i = 0; i < METHODS.length; i++) if (METHODS[i].equals(whole)) return new Section(next, owner);
        return next;
    }

    private static final class Section extends MethodVisitor {
        private final String owner;
        private final Label begin = new Label();

        Section(MethodVisitor next, String owner) {
            super(Opcodes.ASM9, next);
            this.owner = owner;
        }

        private void call(String name) {
            super.visitVarInsn(Opcodes.ALOAD, 0);
            super.visitMethodInsn(Opcodes.INVOKESTATIC, "io/towa/barrier/Whole", name, "(Ljava/lang/Object;)V", false);
        }

        @Override
        public void visitCode() {
            super.visitCode();
            call("begin");
            super.visitLabel(begin);
        }

        @Override
        public void visitInsn(int op) {
            if (op >= Opcodes.IRETURN && op <= Opcodes.RETURN) call("end");
            super.visitInsn(op);
        }

        @Override
        public void visitMaxs(int stack, int locals) {
            Label end = new Label();
            // The last entry of the table: the method's own handlers come before it.
            super.visitTryCatchBlock(begin, end, end, null);
            super.visitLabel(end);
            super.visitFrame(Opcodes.F_FULL, 1, new Object[] {owner}, 1, new Object[] {"java/lang/Throwable"});
            call("end");
            super.visitInsn(Opcodes.ATHROW);
            super.visitMaxs(stack, locals);
        }
    }
}
