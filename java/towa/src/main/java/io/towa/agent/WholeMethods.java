package io.towa.agent;

import org.objectweb.asm.Label;
import org.objectweb.asm.MethodVisitor;
import org.objectweb.asm.Opcodes;

/**
 * Methods of the JDK's collections that pass through states in which entries stored long ago cannot be reached: a table is published before its nodes
 * have moved, a tree is rotated link by link. A crash there would lose them, so each of these methods is a section: whole or not at all. And methods
 * that an exception of a barrier would leave in such a state: what could be refused is made durable before they begin.
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
        "java/util/LinkedList.unlinkFirst(Ljava/util/LinkedList$Node;)Ljava/lang/Object;",
        "java/util/LinkedList.unlinkLast(Ljava/util/LinkedList$Node;)Ljava/lang/Object;",
        "java/util/LinkedList.unlink(Ljava/util/LinkedList$Node;)Ljava/lang/Object;",
        "java/util/ArrayDeque.grow(I)V",
        "java/util/ArrayDeque.delete(I)Z",
    };

    /**
     * Methods that change the collection before they store what they were given: if that cannot become durable, or there is no room for it, the
     * refusal must come first, or the collection is left in between. The local variables of what is given follow.
     */
    private static final String[] FIRST = {
        "java/util/ArrayList.add(ILjava/lang/Object;)V", "2",
        "java/util/Vector.insertElementAt(Ljava/lang/Object;I)V", "1",
        "java/util/ArrayDeque.addFirst(Ljava/lang/Object;)V", "1",
        "java/util/PriorityQueue.offer(Ljava/lang/Object;)Z", "1",
        "java/util/concurrent/PriorityBlockingQueue.offer(Ljava/lang/Object;)Z", "1",
        "java/util/IdentityHashMap.put(Ljava/lang/Object;Ljava/lang/Object;)Ljava/lang/Object;", "12",
        // Collections and maps, whose elements count.
        "java/util/ArrayList.addAll(ILjava/util/Collection;)Z", "*2",
        "java/util/Vector.addAll(ILjava/util/Collection;)Z", "*2",
        "java/util/LinkedList.addAll(ILjava/util/Collection;)Z", "*2",
        "java/util/TreeMap.addAllForTreeSet(Ljava/util/SortedSet;Ljava/lang/Object;)V", "*1",
        "java/util/TreeMap.putAll(Ljava/util/Map;)V", "=1",
    };

    /** The method through which a class passes that a loader has defined from a file, before anything is done with it. */
    private static final String DEFINER = "java/lang/ClassLoader";
    private static final String DEFINED = "postDefineClass";

    private WholeMethods() {}

    /** The method of a class that is changed here though it stores nothing itself, or null. */
    static String withoutStores(String owner) {
        return owner.equals(DEFINER) ? DEFINED : owner.equals("java/util/TreeMap") ? "addAllForTreeSet" : null;
    }

    /** {@code next}, or what makes a section of the method that is written to it. */
    static MethodVisitor around(MethodVisitor next, String owner, String name, String desc) {
        if (owner.equals("java/lang/Enum") && name.equals("<init>")) return new Made(next);
        if (owner.equals(DEFINER) && name.equals(DEFINED)) return new Defined(next);
        if (!owner.startsWith("java/util/")) return next;
        String whole = owner + "." + name + desc;
        for (int i = 0; i < METHODS.length; i++) if (METHODS[i].equals(whole)) return new Section(next, owner);
        for (int i = 0; i < FIRST.length; i += 2) if (FIRST[i].equals(whole)) return new First(next, FIRST[i + 1]);
        return next;
    }

    private static final class Defined extends MethodVisitor {
        Defined(MethodVisitor next) {
            super(Opcodes.ASM9, next);
        }

        @Override
        public void visitCode() {
            super.visitCode();
            super.visitVarInsn(Opcodes.ALOAD, 1);
            super.visitMethodInsn(Opcodes.INVOKESTATIC, "io/towa/barrier/Enums", "identify", "(Ljava/lang/Class;)V", false);
        }
    }

    private static final class First extends MethodVisitor {
        private final String given;

        First(MethodVisitor next, String given) {
            super(Opcodes.ASM9, next);
            this.given = given;
        }

        @Override
        public void visitCode() {
            super.visitCode();
            char of = given.charAt(0);
            boolean all = of == '*' || of == '=';
            String type = of == '*' ? "Ljava/util/Collection;" : of == '=' ? "Ljava/util/Map;" : "Ljava/lang/Object;";
            for (int i = all ? 1 : 0; i < given.length(); i++) {
                super.visitVarInsn(Opcodes.ALOAD, 0);
                super.visitVarInsn(Opcodes.ALOAD, given.charAt(i) - '0');
                super.visitMethodInsn(Opcodes.INVOKESTATIC, "io/towa/barrier/Whole", all ? "firstAll" : "first", "(Ljava/lang/Object;" + type + ")V", false);
            }
        }
    }

    /** Constructor of {@link Enum}. */
    private static final class Made extends MethodVisitor {
        Made(MethodVisitor next) {
            super(Opcodes.ASM9, next);
        }

        @Override
        public void visitInsn(int op) {
            if (op == Opcodes.RETURN) {
                super.visitVarInsn(Opcodes.ALOAD, 0);
                super.visitMethodInsn(Opcodes.INVOKESTATIC, "io/towa/barrier/Enums", "made", "(Ljava/lang/Enum;)V", false);
            }
            super.visitInsn(op);
        }
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
