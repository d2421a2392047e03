package io.towa.agent;

import org.objectweb.asm.AnnotationVisitor;
import org.objectweb.asm.ClassReader;
import org.objectweb.asm.ClassVisitor;
import org.objectweb.asm.ClassWriter;
import org.objectweb.asm.FieldVisitor;
import org.objectweb.asm.MethodTooLargeException;
import org.objectweb.asm.MethodVisitor;
import org.objectweb.asm.Opcodes;

/**
 * Weaves one class: bytes in, bytes out.
 *
 * <p>Always true: only method bodies change (no member, no attribute of the class), so a loaded class can be woven again at any time. A
 * method without anything to weave is copied byte for byte. If a method cannot be woven it stays as it was, and the class counts as
 * failed: {@link Woven#isUnwoven}, and its instances are then refused as not durable.
 */
final class Weaver {
    /** What the weaving of one class needs to know. */
    static final class Job {
        final ClassScan scan;
        final Module module;
        final ClassLoader loader;
        /** Stores to static fields matter: an application class. */
        final boolean statics;
        /** Joins of control show in no frame, so every label may be one. */
        final boolean framesMissing;
        boolean[] leave;
        /** Do not read other classes' files to tell volatile fields: take what is unknown for volatile, and say so in provisional. */
        boolean hasty;
        boolean provisional;
        /** First failure that left a method unwoven, or null. */
        Throwable failure;

        /** Names of the class' own fields that are durable roots, and are set at recovery. */
        final NameSet roots = new NameSet();

        Job(ClassScan scan, Module module, ClassLoader loader, boolean statics) {
            this.scan = scan;
            this.module = module;
            this.loader = loader;
            this.statics = statics;
            framesMissing = (scan.version & 0xffff) < Opcodes.V1_7;
        }
    }

    /** FreqInlineSize and MaxInlineSize of HotSpot. */
    private static final int HOT_INLINE = 325;
    private static final int ANY_INLINE = 35;

    private Weaver() {}

    /** Constructors of these classes show the object to nobody. */
    static boolean plainRoot(String superName) {
        return superName.equals("java/lang/Object") || superName.equals("java/lang/Record") || superName.equals("java/lang/Enum")
            || superName.equals("java/lang/Number");
    }

    /** The woven class, or null if there is nothing to weave. What went wrong in a method is left in {@link Job#failure}. */
    static byte[] weave(Job job, boolean allRoots) {
        ClassScan scan = job.scan;
        boolean roots = job.statics && (scan.rootAnnotations || allRoots) || scan.rootAnnotations;
        boolean code = scan.scanCode(job.statics, job.loader == null);
        if (!code && !roots) return null;
        Volatility.record(scan);
        ClassReader reader = new ClassReader(scan.b);
        if (roots) reader.accept(new RootFinder(job, allRoots), ClassReader.SKIP_CODE | ClassReader.SKIP_DEBUG | ClassReader.SKIP_FRAMES);
        if (!code) return null;
        job.leave = new boolean[scan.needs.length];
        while (true) {
            ClassWriter writer = new ClassWriter(reader, ClassWriter.COMPUTE_MAXS);
            Visitor visitor = new Visitor(writer, job);
            try {
                reader.accept(visitor, 0);
                return writer.toByteArray();
            } catch (MethodTooLargeException e) {
                leave(job, visitor.find(e.getMethodName(), e.getDescriptor()), e);
            } catch (MethodWeaver.Irregular e) {
                leave(job, visitor.method, e);
            }
        }
    }

    private static void leave(Job job, int method, RuntimeException why) {
        if (method < 0 || job.leave[method]) throw why;
        job.leave[method] = true;
        if (job.failure == null) job.failure = why;
    }

    /**
     * C2 inlines a method where it is hot, or anywhere, if its code is not longer than a limit. Barriers that are empty are no reason not to: HashMap.putVal
     * would be a call. Only the JDK's own methods may be marked so.
     */
    private static boolean outgrows(int length, int growth) {
        return length <= HOT_INLINE && length + growth > HOT_INLINE || length <= ANY_INLINE && length + growth > ANY_INLINE;
    }

    private static final class Visitor extends ClassVisitor {
        private final Job job;
        private final String[] methods;
        int method = -1;

        Visitor(ClassVisitor next, Job job) {
            super(Opcodes.ASM9, next);
            this.job = job;
            methods = new String[job.scan.needs.length];
        }

        int find(String name, String desc) {
            for (int i = 0; i < methods.length; i++) if ((name + desc).equals(methods[i])) return i;
            return -1;
        }

        @Override
        public MethodVisitor visitMethod(int access, String name, String desc, String signature, String[] exceptions) {
            MethodVisitor next = super.visitMethod(access, name, desc, signature, exceptions);
            method++;
            methods[method] = name + desc;
            if (!job.scan.needs[method] || job.leave[method]) return next;
            boolean inline = job.loader == null && outgrows(job.scan.length[method], job.scan.growth[method]);
            if (inline) next.visitAnnotation(MethodWeaver.FORCE_INLINE, true).visitEnd();
            MethodVisitor whole = WholeMethods.around(next, job.scan.name, name, desc);
            return new MethodWeaver(whole, job, access, name, job.scan.maxLocals[method], inline);
        }
    }

    /** Finds annotated fields, those that can be no root, too, which are refused by name when a pool is opened; or all static ones of reference type. */
    private static final class RootFinder extends ClassVisitor {
        private final Job job;
        private final boolean all;

        RootFinder(Job job, boolean all) {
            super(Opcodes.ASM9);
            this.job = job;
            this.all = all && job.statics;
        }

        @Override
        public FieldVisitor visitField(int access, final String name, final String desc, String signature, Object value) {
            char c = desc.charAt(0);
            boolean canBeRoot = (access & Opcodes.ACC_STATIC) != 0 && (c == 'L' || c == '[');
            final boolean isFinal = (access & Opcodes.ACC_FINAL) != 0;
            final boolean isOneOfAll = all && canBeRoot && (access & Opcodes.ACC_SYNTHETIC) == 0;
            return new FieldVisitor(Opcodes.ASM9) {
                private boolean annotated;

                @Override
                public AnnotationVisitor visitAnnotation(String annotation, boolean visible) {
                    annotated |= annotation.equals("Lio/towa/DurableRoot;") || annotation.equals("Lrbp/durableroot;");
                    return null;
                }

                @Override
                public void visitEnd() {
                    if (!annotated && !isOneOfAll) return;
                    RootFields.add(job.scan.name, name, desc, isFinal, annotated, job.loader);
                    if (canBeRoot && !isFinal) job.roots.add(name);
                }
            };
        }
    }
}
