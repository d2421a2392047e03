package io.towa.policy;

import io.towa.agent.NumberedNames;
import java.util.ArrayList;
import java.util.Collections;
import java.util.HashMap;
import java.util.HashSet;
import java.util.IdentityHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.function.Function;
import org.objectweb.asm.ClassReader;
import org.objectweb.asm.ClassVisitor;
import org.objectweb.asm.ConstantDynamic;
import org.objectweb.asm.FieldVisitor;
import org.objectweb.asm.Handle;
import org.objectweb.asm.Label;
import org.objectweb.asm.MethodVisitor;
import org.objectweb.asm.Opcodes;
import org.objectweb.asm.Type;

/**
 * A digest of what a class is and does: supertypes, fields, methods, their generic types, instructions and constants. Line numbers, names of local variables, annotations
 * and the order of the constant pool do not count.
 *
 * <p>Always true: the digest does not depend on the numbers that the compiler gave to anonymous and local classes. The class' own name is left out; another numbered
 * class of the same top-level class counts by its own digest.
 */
final class CodeDigest {
    /** A numbered class that is referred to counts by its digest, those that it refers to by theirs, and the next by their names without the numbers. */
    private static final int LEVELS = 2;
    /** The flags of a class file. Above them ASM has its own, for annotations. */
    private static final int FLAGS = 0xffff;
    private static final long FNV_BASIS = 0xcbf29ce484222325L;
    private static final long FNV_PRIME = 0x100000001b3L;

    private final Function<String, byte[]> files;
    /** Digests of numbered classes by level and internal name; 0: it has no file. */
    private final Map<String, Long> known;
    private final int level;
    private String name;
    private long hash = FNV_BASIS;
    private String method = "";
    /** By name and descriptor; null: not asked for. */
    private Map<String, Method> methods;

    /** A method's own digest, and what it calls. */
    private static final class Method {
        long digest;
        final boolean isPrivate;
        final List<Call> calls = new ArrayList<>();

        Method(boolean isPrivate) {
            this.isPrivate = isPrivate;
        }
    }

    /** @param exact the method of that class, whatever a class below it has */
    private record Call(String owner, String method, boolean exact) {}

    private CodeDigest(Function<String, byte[]> files, Map<String, Long> known, int level) {
        this.files = files;
        this.known = known;
        this.level = level;
    }

    /**
     * What one class file says.
     *
     * @param digest 64 bits; equal for classes of equal code
     * @param method name and descriptor of the method that the class is declared in; empty: none, as in the initialiser of a field
     */
    record Code(long digest, String method) {}

    /**
     * Reads a class file.
     *
     * @param files gives the class file of another class by its internal name; null: there is none
     * @throws RuntimeException the file is damaged, or newer than this library knows
     */
    static Code of(byte[] file, Function<String, byte[]> files) {
        CodeDigest d = new CodeDigest(files, new HashMap<>(), LEVELS);
        d.read(file);
        return new Code(d.hash, d.method);
    }

    /**
     * The digest of the method {@code hashCode()} of a class, and of those that it calls, as far as they are of the class, of those above it, or of its interfaces.
     *
     * @param chain the class file of the class, and of those above it that are not the JDK's
     * @param interfaces internal names of the interfaces that are not the JDK's
     * @param all all methods count: a class of the JDK's may call any of them
     * @param files gives the class files of these interfaces
     * @return 0: there is none
     * @throws RuntimeException the code is not all there is: it asks for the fields by reflection; or a file is missing or cannot be read
     */
    static long ofHashCode(List<byte[]> chain, Set<String> interfaces, boolean all, Function<String, byte[]> files) {
        HashCode h = new HashCode(interfaces, files);
        for (int i = 0; i < chain.size(); i++) {
            h.add(chain.get(i));
        }
        h.follow(0, "hashCode()I");
        if (interfaces.contains("scala/Product")) {
            // Its runtime hashes case classes by these.
            h.follow(0, "productElement(I)Ljava/lang/Object;");
            h.follow(0, "productPrefix()Ljava/lang/String;");
            h.follow(0, "productArity()I");
        }
        if (all) {
            h.followAll();
        }
        return h.sum;
    }

    /** Follows the calls of a {@code hashCode()}. */
    private static final class HashCode {
        private final Set<String> interfaces;
        private final Function<String, byte[]> files;
        /** The most derived first; interfaces, which few calls lead to, last. */
        private final List<CodeDigest> classes = new ArrayList<>();
        private final Set<Method> met = new HashSet<>();
        private boolean complete;
        private long sum;

        HashCode(Set<String> interfaces, Function<String, byte[]> files) {
            this.interfaces = interfaces;
            this.files = files;
        }

        void add(byte[] file) {
            CodeDigest d = new CodeDigest(name -> null, new HashMap<>(), 0);
            d.methods = new HashMap<>();
            d.read(file);
            classes.add(d);
        }

        private void complete() {
            if (!complete) {
                complete = true;
                for (String name : interfaces) {
                    add(files.apply(name));
                }
            }
        }

        /** @param from the class at which the method is looked for first */
        void follow(int from, String method) {
            int at = holder(from, method);
            if (at == classes.size() && !complete) {
                complete();
                at = holder(from, method);
            }
            Method m = at < classes.size() ? classes.get(at).methods.get(method) : null;
            if (m == null || !met.add(m)) {
                return;
            }
            sum = (sum ^ m.digest) * FNV_PRIME;
            for (int i = 0; i < m.calls.size(); i++) {
                follow(m.calls.get(i));
            }
        }

        private void followAll() {
            for (int i = 0; i < classes.size(); i++) {
                List<String> names = new ArrayList<>(classes.get(i).methods.keySet());
                Collections.sort(names);
                for (int k = 0; k < names.size(); k++) {
                    follow(i, names.get(k));
                }
            }
        }

        private void follow(Call c) {
            boolean fields = c.owner.equals("java/lang/Class") && (c.method.contains("Field") || c.method.contains("RecordComponents"));
            if (fields || c.method.startsWith("reflection")) {
                throw new IllegalStateException("by reflection: " + c.method);
            }
            if (interfaces.contains(c.owner)) {
                complete();
            }
            int owner = 0;
            while (owner < classes.size() && !classes.get(owner).name.equals(c.owner)) {
                owner++;
            }
            if (owner < classes.size()) {
                Method own = classes.get(owner).methods.get(c.method);
                follow(c.exact || own != null && own.isPrivate ? owner : 0, c.method);
            }
        }

        private int holder(int from, String method) {
            int at = from;
            while (at < classes.size() && !classes.get(at).methods.containsKey(method)) {
                at++;
            }
            return at;
        }
    }

    private void read(byte[] file) {
        ClassReader reader = new ClassReader(file);
        name = reader.getClassName();
        reader.accept(new Members(), ClassReader.SKIP_DEBUG | ClassReader.SKIP_FRAMES);
    }

    /** The digest of a numbered class that this one refers to; 0: it has no file. */
    private long other(String other) {
        String key = level + other;
        Long digest = known.get(key);
        if (digest == null) {
            byte[] file = files.apply(other);
            CodeDigest d = file == null ? null : new CodeDigest(files, known, level - 1);
            if (d != null) {
                d.read(file);
            }
            digest = d == null ? 0 : d.hash;
            known.put(key, digest);
        }
        return digest;
    }

    private void add(String s) {
        for (int i = 0; i < s.length(); i++) {
            hash = (hash ^ s.charAt(i)) * FNV_PRIME;
        }
        hash = (hash ^ 0xffff) * FNV_PRIME;
    }

    private void add(long n) {
        add(Long.toString(n));
    }

    /** An internal name, or the descriptor of an array. */
    private void addType(String name) {
        if (name == null) {
            add("-");
        } else if (name.charAt(0) == '[') {
            addDescriptor(name);
        } else {
            addClass(name);
        }
    }

    private void addClass(String c) {
        if (c.equals(name)) {
            add("^");
            return;
        }
        if (!NumberedNames.mayBe(c) || !top(c).equals(top(name))) {
            add(c);
            return;
        }
        long digest = level == 0 ? 0 : other(c);
        add(digest == 0 ? unnumbered(c) : Long.toHexString(digest));
    }

    private static String unnumbered(String text) {
        return text == null ? "-" : text.replaceAll("\\$[0-9]+", "\\$");
    }

    private static String top(String name) {
        int at = name.indexOf('$', 1);
        return at < 0 ? name : name.substring(0, at);
    }

    private void addDescriptor(String d) {
        for (int i = 0; i < d.length(); i++) {
            if (d.charAt(i) == 'L') {
                int end = d.indexOf(';', i);
                addClass(d.substring(i + 1, end));
                i = end;
            } else {
                add(d.charAt(i));
            }
        }
        add(";");
    }

    private void addConstant(Object c) {
        if (c instanceof Type t) {
            addDescriptor(t.getDescriptor());
        } else if (c instanceof Handle h) {
            add(h.getTag());
            addMember(h.getOwner(), h.getName(), h.getDesc());
        } else if (c instanceof ConstantDynamic d) {
            add(d.getName());
            addDescriptor(d.getDescriptor());
            addConstant(d.getBootstrapMethod());
            for (int i = 0; i < d.getBootstrapMethodArgumentCount(); i++) {
                addConstant(d.getBootstrapMethodArgument(i));
            }
        } else {
            add(c == null ? "-" : c.getClass().getName() + c);
        }
    }

    private void addMember(String owner, String member, String descriptor) {
        addType(owner);
        add(member);
        addDescriptor(descriptor);
    }

    private final class Members extends ClassVisitor {
        Members() {
            super(Opcodes.ASM9);
        }

        @Override
        public void visit(int version, int access, String name, String signature, String superName, String[] interfaces) {
            add(access & FLAGS);
            add(unnumbered(signature));
            addType(superName);
            for (int i = 0; i < interfaces.length; i++) {
                addType(interfaces[i]);
            }
        }

        @Override
        public void visitOuterClass(String owner, String name, String descriptor) {
            if (name != null) {
                method = name + descriptor;
            }
        }

        @Override
        public FieldVisitor visitField(int access, String name, String descriptor, String signature, Object value) {
            add(access & FLAGS);
            add(name);
            addDescriptor(descriptor);
            add(unnumbered(signature));
            addConstant(value);
            return null;
        }

        @Override
        public MethodVisitor visitMethod(int access, String name, String descriptor, String signature, String[] exceptions) {
            add(access & FLAGS);
            addMember(CodeDigest.this.name, name, descriptor);
            add(unnumbered(signature));
            if (methods == null) {
                return new Instructions(null);
            }
            hash = FNV_BASIS;
            Method m = new Method((access & Opcodes.ACC_PRIVATE) != 0);
            methods.put(name + descriptor, m);
            return new Instructions(m);
        }
    }

    private final class Instructions extends MethodVisitor {
        private final Map<Label, Integer> labels = new IdentityHashMap<>();

        /** Null: its digest is not asked for. */
        private final Method of;

        Instructions(Method of) {
            super(Opcodes.ASM9);
            this.of = of;
        }

        @Override
        public void visitEnd() {
            if (of != null) {
                of.digest = hash;
            }
        }

        private void add(Label l) {
            Integer next = labels.size();
            Integer known = labels.putIfAbsent(l, next);
            CodeDigest.this.add(known != null ? known : next);
        }

        private void add(Label[] all) {
            for (int i = 0; i < all.length; i++) {
                add(all[i]);
            }
        }

        private void add(int... numbers) {
            for (int i = 0; i < numbers.length; i++) {
                CodeDigest.this.add(numbers[i]);
            }
        }

        @Override
        public void visitInsn(int opcode) {
            add(opcode);
        }

        @Override
        public void visitIntInsn(int opcode, int operand) {
            add(opcode, operand);
        }

        @Override
        public void visitVarInsn(int opcode, int variable) {
            add(opcode, variable);
        }

        @Override
        public void visitTypeInsn(int opcode, String type) {
            add(opcode);
            addType(type);
        }

        @Override
        public void visitFieldInsn(int opcode, String owner, String name, String descriptor) {
            add(opcode);
            addMember(owner, name, descriptor);
        }

        @Override
        public void visitMethodInsn(int opcode, String owner, String name, String descriptor, boolean isInterface) {
            add(opcode);
            addMember(owner, name, descriptor);
            if (of != null) {
                of.calls.add(new Call(owner, name + descriptor, opcode == Opcodes.INVOKESPECIAL || opcode == Opcodes.INVOKESTATIC));
            }
        }

        @Override
        public void visitInvokeDynamicInsn(String name, String descriptor, Handle bootstrap, Object... arguments) {
            add(Opcodes.INVOKEDYNAMIC);
            CodeDigest.this.add(name);
            addDescriptor(descriptor);
            addConstant(bootstrap);
            for (int i = 0; i < arguments.length; i++) {
                addConstant(arguments[i]);
                if (of != null && arguments[i] instanceof Handle h) {
                    of.calls.add(new Call(h.getOwner(), h.getName() + h.getDesc(), h.getTag() == Opcodes.H_INVOKESPECIAL || h.getTag() == Opcodes.H_INVOKESTATIC));
                }
            }
        }

        @Override
        public void visitJumpInsn(int opcode, Label to) {
            add(opcode);
            add(to);
        }

        @Override
        public void visitLabel(Label l) {
            CodeDigest.this.add("label");
            add(l);
        }

        @Override
        public void visitLdcInsn(Object value) {
            add(Opcodes.LDC);
            addConstant(value);
        }

        @Override
        public void visitIincInsn(int variable, int by) {
            add(Opcodes.IINC, variable, by);
        }

        @Override
        public void visitTableSwitchInsn(int min, int max, Label otherwise, Label... cases) {
            add(Opcodes.TABLESWITCH, min, max);
            add(otherwise);
            add(cases);
        }

        @Override
        public void visitLookupSwitchInsn(Label otherwise, int[] keys, Label[] cases) {
            add(Opcodes.LOOKUPSWITCH);
            add(keys);
            add(otherwise);
            add(cases);
        }

        @Override
        public void visitMultiANewArrayInsn(String descriptor, int dimensions) {
            add(Opcodes.MULTIANEWARRAY, dimensions);
            addDescriptor(descriptor);
        }

        @Override
        public void visitTryCatchBlock(Label start, Label end, Label handler, String type) {
            CodeDigest.this.add("try");
            add(new Label[] {start, end, handler});
            addType(type);
        }
    }
}
