package io.towa.agent;

import org.objectweb.asm.ClassReader;
import org.objectweb.asm.ClassVisitor;
import org.objectweb.asm.ClassWriter;
import org.objectweb.asm.MethodVisitor;
import org.objectweb.asm.Opcodes;

/**
 * Transformers of other agents that come after this library's, and make a class from a file of their own instead of the one they are given: the barriers would be gone,
 * and stores to durable objects with them. So the JDK's method that asks the transformers of one agent is woven, and each class file that another agent makes is looked at.
 *
 * <p>Always true: a class file from another agent written in Java has barriers in each of its methods that stores, unless a method has some already: code that an agent
 * inlines into a woven method is not woven. Agents in native code do not come by here.
 */
public final class OtherAgents {
    /** The JDK's class for one agent. */
    static final String IMPLEMENTATION = "sun/instrument/InstrumentationImpl";
    private static final String TRANSFORM = "(Ljava/lang/Module;Ljava/lang/ClassLoader;Ljava/lang/String;Ljava/lang/Class;Ljava/security/ProtectionDomain;[BZ)[B";

    private OtherAgents() {}

    /** The JDK's class file, whose transform() hands what it returns to {@link #looked}; null on a JDK that has no such method: then other agents go unseen. */
    static byte[] woven(byte[] file) {
        ClassReader reader = new ClassReader(file);
        ClassWriter writer = new ClassWriter(reader, ClassWriter.COMPUTE_MAXS);
        boolean[] found = new boolean[1];
        reader.accept(new ClassVisitor(Opcodes.ASM9, writer) {
            @Override
            public MethodVisitor visitMethod(int access, String name, String desc, String signature, String[] exceptions) {
                MethodVisitor next = super.visitMethod(access, name, desc, signature, exceptions);
                if (!name.equals("transform") || !desc.equals(TRANSFORM)) return next;
                found[0] = true;
                return new Returns(next);
            }
        }, 0);
        return found[0] ? writer.toByteArray() : null;
    }

    private static final class Returns extends MethodVisitor {
        Returns(MethodVisitor next) {
            super(Opcodes.ASM9, next);
        }

        @Override
        public void visitInsn(int op) {
            if (op == Opcodes.ARETURN) {
                // This, module, loader, name.
                for (int i = 0; i < 4; i++) super.visitVarInsn(Opcodes.ALOAD, i);
                super.visitMethodInsn(Opcodes.INVOKESTATIC, "io/towa/agent/OtherAgents", "looked",
                    "([BLjava/lang/Object;Ljava/lang/Module;Ljava/lang/ClassLoader;Ljava/lang/String;)[B", false);
            }
            super.visitInsn(op);
        }
    }

    /**
     * What the JVM gets of a class file that an agent has made.
     *
     * @param made null: the agent leaves the class as it is
     * @param by the agent's Instrumentation
     */
    public static byte[] looked(byte[] made, Object by, Module module, ClassLoader loader, String name) {
        if (made == null || name == null || by == Agent.instrumentation() || Skip.reason(name) != null) return made;
        if (Agent.changed(name, loader)) return made;
        byte[] woven = Agent.weave(module, loader, name, made, LongSet.key(name, loader));
        return woven != null ? woven : made;
    }
}
