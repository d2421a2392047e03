package io.towa.agent;

import org.objectweb.asm.AnnotationVisitor;
import org.objectweb.asm.Handle;
import org.objectweb.asm.Label;
import org.objectweb.asm.MethodVisitor;
import org.objectweb.asm.Opcodes;
import org.objectweb.asm.ConstantDynamic;
import org.objectweb.asm.Type;

/**
 * Weaves one method: stores to fields and array elements, and the calls of {@link Calls}.
 *
 * <p>Always true: no branch is added and no local that lives across an original instruction, so stack map frames stay as they are. In a
 * constructor nothing is woven before the call of super() or this(). A constructor with more than one such call is refused
 * ({@link Irregular}): which of its stores come after cannot be told in one pass.
 */
final class MethodWeaver extends MethodVisitor {
    /** The method cannot be woven. */
    static final class Irregular extends RuntimeException {
        private static final long serialVersionUID = 1;

        Irregular(String why) {
            super(why, null, false, false);
        }
    }

    static final String FORCE_INLINE = "Ljdk/internal/vm/annotation/ForceInline;";

    private final Weaver.Job job;
    private final Straight straight = new Straight();
    private final boolean constructor;
    /** The class' static initialiser. */
    private final boolean initializer;
    /** Names of the class' own static fields that its initialiser has read so far: it knows what is in them. */
    private final NameSet read = new NameSet();
    private final boolean isStatic;
    private final int freeLocal;
    /** It has been given the annotation of that name; a second one would be an error. */
    private final boolean inline;
    private boolean initialized;
    private int news;

    MethodWeaver(MethodVisitor next, Weaver.Job job, int access, String name, int maxLocals, boolean inline) {
        super(Opcodes.ASM9, next);
        this.job = job;
        constructor = name.equals("<init>");
        initialized = !constructor;
        initializer = name.equals("<clinit>");
        isStatic = (access & Opcodes.ACC_STATIC) != 0;
        freeLocal = maxLocals;
        this.inline = inline;
    }

    @Override
    public AnnotationVisitor visitAnnotation(String annotation, boolean visible) {
        return inline && annotation.equals(FORCE_INLINE) ? null : super.visitAnnotation(annotation, visible);
    }

    // ---- joins of control

    @Override
    public void visitFrame(int type, int nLocal, Object[] local, int nStack, Object[] stack) {
        straight.forget();
        super.visitFrame(type, nLocal, local, nStack, stack);
    }

    @Override
    public void visitLabel(Label label) {
        if (job.framesMissing) straight.forget();
        super.visitLabel(label);
    }

    // ---- stores

    @Override
    public void visitFieldInsn(int op, String owner, String name, String desc) {
        char c = desc.charAt(0);
        int size = c == 'J' || c == 'D' ? 2 : 1;
        if (op == Opcodes.PUTFIELD) {
            boolean plain = !initialized || straight.fresh(size) || Skip.reason(owner) != null || job.scan.leftOut(owner, name);
            if (plain) super.visitFieldInsn(op, owner, name, desc);
            else putField(owner, name, desc, size);
            straight.pop(size);
            straight.drop(1);
        } else if (op == Opcodes.PUTSTATIC) {
            if (job.statics && (c == 'L' || c == '[')) putStatic(owner, name, desc);
            else super.visitFieldInsn(op, owner, name, desc);
            straight.pop(size);
        } else {
            if (op == Opcodes.GETFIELD) straight.drop(1);
            if (op == Opcodes.GETSTATIC && initializer && owner.equals(job.scan.name)) read.add(name);
            straight.pushOther(size);
            super.visitFieldInsn(op, owner, name, desc);
        }
    }

    private void putField(String owner, String name, String desc, int size) {
        String group = Groups.nameFor(owner);
        int id = FieldIds.of(owner, name, desc);
        if (Volatility.isVolatile(owner, name, desc, job)) putVolatile(group, id, owner, name, desc, size);
        else if (size == 2) putWide(group, id, owner, name, desc);
        else putPlain(group, id, owner, name, desc);
    }

    private void putPlain(String group, int id, String owner, String name, String desc) {
        char c = desc.charAt(0);
        if ((c == 'L' || c == '[') && !straight.isNull()) {
            mv.visitInsn(Opcodes.DUP2);
            number(id);
            call(group, "pre", "(Ljava/lang/Object;Ljava/lang/Object;I)V");
        }
        mv.visitInsn(Opcodes.DUP2);
        mv.visitFieldInsn(Opcodes.PUTFIELD, owner, name, desc);
        mv.visitInsn(Opcodes.POP);
        number(id);
        call(group, "post", "(Ljava/lang/Object;I)V");
    }

    /** o v: v o: o v o: o o v */
    private void putWide(String group, int id, String owner, String name, String desc) {
        mv.visitInsn(Opcodes.DUP2_X1);
        mv.visitInsn(Opcodes.POP2);
        mv.visitInsn(Opcodes.DUP_X2);
        mv.visitInsn(Opcodes.DUP_X2);
        mv.visitInsn(Opcodes.POP);
        mv.visitFieldInsn(Opcodes.PUTFIELD, owner, name, desc);
        number(id);
        call(group, "post", "(Ljava/lang/Object;I)V");
    }

    private void putVolatile(String group, int id, String owner, String name, String desc, int size) {
        char c = desc.charAt(0);
        String arg = c == 'L' || c == '[' ? "Ljava/lang/Object;" : c == 'J' || c == 'F' || c == 'D' ? desc : "I";
        if (size == 1) {
            mv.visitInsn(Opcodes.DUP2);
        } else {
            // o v: v o: v o o: o o v: o v o v
            mv.visitInsn(Opcodes.DUP2_X1);
            mv.visitInsn(Opcodes.POP2);
            mv.visitInsn(Opcodes.DUP);
            mv.visitInsn(Opcodes.DUP2_X2);
            mv.visitInsn(Opcodes.POP2);
            mv.visitInsn(Opcodes.DUP2_X1);
        }
        number(id);
        call(group, "before", "(Ljava/lang/Object;" + arg + "I)I");
        if (size == 1) {
            // o v t: t o v: t v o: o t v o: o t o v
            mv.visitInsn(Opcodes.DUP_X2);
            mv.visitInsn(Opcodes.POP);
            mv.visitInsn(Opcodes.SWAP);
            mv.visitInsn(Opcodes.DUP_X2);
            mv.visitInsn(Opcodes.SWAP);
        } else {
            // o v t: o t v: v o t: o t v o t: o t v o: o t o v
            mv.visitInsn(Opcodes.DUP_X2);
            mv.visitInsn(Opcodes.POP);
            mv.visitInsn(Opcodes.DUP2_X2);
            mv.visitInsn(Opcodes.POP2);
            mv.visitInsn(Opcodes.DUP2_X2);
            mv.visitInsn(Opcodes.POP);
            mv.visitInsn(Opcodes.DUP_X2);
            mv.visitInsn(Opcodes.POP);
        }
        mv.visitFieldInsn(Opcodes.PUTFIELD, owner, name, desc);
        number(id);
        call(group, "after", "(Ljava/lang/Object;II)V");
    }

    private void putStatic(String owner, String name, String desc) {
        int id = FieldIds.of(owner, name, desc);
        if (initializer && owner.equals(job.scan.name) && job.roots.contains(name) && !read.contains(name) && job.scan.version >= Opcodes.V1_5) {
            mv.visitLdcInsn(Type.getObjectType(owner));
            number(id);
            call("io/towa/barrier/Statics", "initial", "(Ljava/lang/Object;Ljava/lang/Class;I)Ljava/lang/Object;");
            mv.visitTypeInsn(Opcodes.CHECKCAST, Type.getType(desc).getInternalName());
        }
        mv.visitInsn(Opcodes.DUP);
        number(id);
        call("io/towa/barrier/Statics", "pre", "(Ljava/lang/Object;I)V");
        mv.visitFieldInsn(Opcodes.PUTSTATIC, owner, name, desc);
        number(id);
        call("io/towa/barrier/Statics", "post", "(I)V");
    }

    @Override
    public void visitInsn(int op) {
        if (op >= Opcodes.IASTORE && op <= Opcodes.SASTORE) {
            int size = op == Opcodes.LASTORE || op == Opcodes.DASTORE ? 2 : 1;
            int k = op - Opcodes.IASTORE;
            if (straight.fresh(size + 1)) mv.visitInsn(op);
            else call(Groups.nameForArrays(k), "store", GroupBytes.STORE_DESCS[k]);
        } else {
            mv.visitInsn(op);
        }
        straight.insn(op);
    }

    private void call(String owner, String name, String desc) {
        mv.visitMethodInsn(Opcodes.INVOKESTATIC, owner, name, desc, false);
    }

    private void number(int n) {
        if (n <= 5) mv.visitInsn(Opcodes.ICONST_0 + n);
        else if (n <= Byte.MAX_VALUE) mv.visitIntInsn(Opcodes.BIPUSH, n);
        else if (n <= Short.MAX_VALUE) mv.visitIntInsn(Opcodes.SIPUSH, n);
        else mv.visitLdcInsn(Integer.valueOf(n));
    }

    // ---- calls

    @Override
    public void visitMethodInsn(int op, String owner, String name, String desc, boolean isInterface) {
        boolean copy = owner.equals("java/lang/System") && name.equals("arraycopy");
        Calls.Call c = Calls.ownerKnown(owner) && !(copy && straight.fresh(2)) ? Calls.find(owner, name, desc) : null;
        if (c == null && owner.equals(job.scan.name) && job.scan.ownNative(name, desc)) c = Calls.findOwnNative(owner, name, desc);
        if (c == null) mv.visitMethodInsn(op, owner, name, desc, isInterface);
        else if (c.owner != null) call(c.owner, c.name, c.desc);
        else wrapped(c, op, owner, name, desc, isInterface);
        if (copy) straight.drop(5);
        else follow(op, owner, name, desc);
    }

    /** Keeps the arguments in locals, calls, and reports what the arrays among them may have got. */
    private void wrapped(Calls.Call c, int op, String owner, String name, String desc, boolean isInterface) {
        Type[] args = Type.getArgumentTypes(desc);
        int[] locals = new int[args.length];
        int next = freeLocal;
        for (int i = 0; i < args.length; i++) {
            locals[i] = next;
            next += args[i].getSize();
        }
        for (int i = args.length - 1; i >= 0; i--) mv.visitVarInsn(args[i].getOpcode(Opcodes.ISTORE), locals[i]);
        for (int i = 0; i < args.length; i++) mv.visitVarInsn(args[i].getOpcode(Opcodes.ILOAD), locals[i]);
        mv.visitMethodInsn(op, owner, name, desc, isInterface);
        for (int i = 0; i < c.arrays.length; i += 4) {
            mv.visitVarInsn(Opcodes.ALOAD, locals[c.arrays[i]]);
            if (c.arrays[i + 1] < 0) {
                call("io/towa/barrier/Redirects", "wrote", "(Ljava/lang/Object;)V");
                continue;
            }
            mv.visitVarInsn(Opcodes.ILOAD, locals[c.arrays[i + 1]]);
            mv.visitVarInsn(Opcodes.ILOAD, locals[c.arrays[i + 2]]);
            if (c.arrays[i + 3] >= 0) {
                mv.visitVarInsn(Opcodes.ILOAD, locals[c.arrays[i + 3]]);
                mv.visitInsn(Opcodes.ISUB);
            }
            call("io/towa/barrier/Redirects", "wrote", "(Ljava/lang/Object;II)V");
        }
    }

    private void follow(int op, String owner, String name, String desc) {
        int sizes = Type.getArgumentsAndReturnSizes(desc);
        straight.pop((sizes >> 2) - 1);
        if (op != Opcodes.INVOKESTATIC) {
            boolean init = constructor && op == Opcodes.INVOKESPECIAL && name.equals("<init>");
            if (init && news == 0) {
                if (initialized) throw new Irregular("a constructor with several calls of super() or this()");
                initialized = true;
                straight.drop(1);
                straight.thisFresh = owner.equals(job.scan.superName) && Weaver.plainRoot(owner);
            } else {
                if (init) news--;
                straight.pop(1);
            }
        }
        straight.pushOther(sizes & 3);
    }

    // ---- the rest only moves the stack

    @Override
    public void visitInvokeDynamicInsn(String name, String desc, Handle bootstrap, Object... args) {
        int sizes = Type.getArgumentsAndReturnSizes(desc);
        straight.pop((sizes >> 2) - 1);
        straight.pushOther(sizes & 3);
        mv.visitInvokeDynamicInsn(name, desc, bootstrap, args);
    }

    @Override
    public void visitIntInsn(int op, int operand) {
        if (op == Opcodes.NEWARRAY) {
            straight.drop(1);
            straight.pushArray();
        } else {
            straight.pushOther(1);
        }
        mv.visitIntInsn(op, operand);
    }

    @Override
    public void visitTypeInsn(int op, String type) {
        if (op == Opcodes.NEW) {
            news++;
            straight.pushOther(1);
        } else if (op == Opcodes.ANEWARRAY) {
            straight.drop(1);
            straight.pushArray();
        } else if (op == Opcodes.INSTANCEOF) {
            straight.drop(1);
            straight.pushOther(1);
        }
        mv.visitTypeInsn(op, type);
    }

    @Override
    public void visitVarInsn(int op, int var) {
        boolean two = op == Opcodes.LLOAD || op == Opcodes.DLOAD || op == Opcodes.LSTORE || op == Opcodes.DSTORE;
        if (op == Opcodes.RET) {
            straight.forget();
        } else if (op >= Opcodes.ISTORE) {
            straight.store(var, two ? 2 : 1);
            if (var == 0 && constructor) straight.thisFresh = false;
        } else if (op == Opcodes.ALOAD && var == 0 && constructor && !isStatic && (straight.thisFresh || !initialized)) {
            straight.pushThis();
        } else if (op == Opcodes.ALOAD) {
            straight.load(var);
        } else {
            straight.pushOther(two ? 2 : 1);
        }
        mv.visitVarInsn(op, var);
    }

    @Override
    public void visitJumpInsn(int op, Label label) {
        straight.jump(op);
        mv.visitJumpInsn(op, label);
    }

    @Override
    public void visitLdcInsn(Object value) {
        boolean two = value instanceof Long || value instanceof Double
            || value instanceof ConstantDynamic && ((ConstantDynamic) value).getSize() == 2;
        straight.pushOther(two ? 2 : 1);
        mv.visitLdcInsn(value);
    }

    @Override
    public void visitTableSwitchInsn(int min, int max, Label other, Label... labels) {
        straight.forget();
        mv.visitTableSwitchInsn(min, max, other, labels);
    }

    @Override
    public void visitLookupSwitchInsn(Label other, int[] keys, Label[] labels) {
        straight.forget();
        mv.visitLookupSwitchInsn(other, keys, labels);
    }

    @Override
    public void visitMultiANewArrayInsn(String desc, int dimensions) {
        straight.drop(dimensions);
        straight.pushOther(1);
        mv.visitMultiANewArrayInsn(desc, dimensions);
    }
}
