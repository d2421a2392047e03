package io.towa.policy;

import java.util.HashSet;
import java.util.Set;
import org.objectweb.asm.ClassReader;
import org.objectweb.asm.ClassVisitor;
import org.objectweb.asm.Handle;
import org.objectweb.asm.Label;
import org.objectweb.asm.MethodVisitor;
import org.objectweb.asm.Opcodes;

/**
 * What one class file says of fields in which hashCode() remembers its result: those that hashCode() tests and stores, and those that have other uses. A field of the
 * first kind and not of the second is zero in each new object, so zero means "not computed yet", and only hashCode() knows the difference.
 *
 * @param remembered names of fields that hashCode() compares with zero, or copies to compare the copy, and stores
 * @param used names of fields that a method other than hashCode() and equals() reads, or sets to something else than zero
 */
record HashMemos(Set<String> remembered, Set<String> used) {
    /**
     * Reads a class file.
     *
     * @throws RuntimeException the file is damaged, or newer than this library knows
     */
    static HashMemos of(byte[] file) {
        Set<String> tested = new HashSet<>();
        Set<String> remembered = new HashSet<>();
        Set<String> used = new HashSet<>();
        new ClassReader(file).accept(new ClassVisitor(Opcodes.ASM9) {
            @Override
            public MethodVisitor visitMethod(int access, String name, String descriptor, String signature, String[] exceptions) {
                if (name.equals("hashCode") && descriptor.equals("()I")) {
                    return new Uses(remembered, new HashSet<>(), tested);
                }
                return new Uses(used, name.equals("equals") ? new HashSet<>() : used, new HashSet<>());
            }
        }, ClassReader.SKIP_DEBUG | ClassReader.SKIP_FRAMES);
        remembered.retainAll(tested);
        return new HashMemos(remembered, used);
    }

    /** What one method does with fields. */
    private static final class Uses extends MethodVisitor {
        private final Set<String> stored;
        private final Set<String> loaded;
        private final Set<String> tested;
        /** The field that the last instruction has read; null: it was another one. */
        private String read;
        /** The last instruction has pushed the constant zero. */
        private boolean zero;

        Uses(Set<String> stored, Set<String> loaded, Set<String> tested) {
            super(Opcodes.ASM9);
            this.stored = stored;
            this.loaded = loaded;
            this.tested = tested;
        }

        @Override
        public void visitFieldInsn(int opcode, String owner, String name, String descriptor) {
            if (opcode == Opcodes.PUTFIELD && !zero) {
                stored.add(name);
            }
            read = opcode == Opcodes.GETFIELD ? name : null;
            if (read != null) {
                loaded.add(read);
            }
            zero = false;
        }

        @Override
        public void visitJumpInsn(int opcode, Label to) {
            test(opcode == Opcodes.IFEQ || opcode == Opcodes.IFNE);
        }

        @Override
        public void visitVarInsn(int opcode, int variable) {
            test(opcode == Opcodes.ISTORE);
        }

        @Override
        public void visitInsn(int opcode) {
            test(opcode == Opcodes.DUP);
            zero = opcode == Opcodes.ICONST_0;
        }

        private void test(boolean is) {
            if (is && read != null) {
                tested.add(read);
            }
            other();
        }

        private void other() {
            read = null;
            zero = false;
        }

        @Override
        public void visitIntInsn(int opcode, int operand) {
            other();
        }

        @Override
        public void visitTypeInsn(int opcode, String type) {
            other();
        }

        @Override
        public void visitMethodInsn(int opcode, String owner, String name, String descriptor, boolean isInterface) {
            other();
        }

        @Override
        public void visitInvokeDynamicInsn(String name, String descriptor, Handle bootstrap, Object... arguments) {
            other();
        }

        @Override
        public void visitLdcInsn(Object value) {
            other();
        }

        @Override
        public void visitLabel(Label l) {
            other();
        }
    }
}
