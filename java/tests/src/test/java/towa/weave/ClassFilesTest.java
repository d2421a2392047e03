package towa.weave;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.towa.NotDurableException;
import io.towa.Towa;
import io.towa.agent.Agent;
import io.towa.agent.Woven;
import io.towa.barrier.WhiteGate;
import java.lang.invoke.MethodHandles;
import java.util.concurrent.atomic.AtomicBoolean;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Test;
import org.objectweb.asm.ClassWriter;
import org.objectweb.asm.Label;
import org.objectweb.asm.MethodVisitor;
import org.objectweb.asm.Opcodes;

/** Class files that no compiler of today writes, and classes that no transformer sees. */
class ClassFilesTest implements Opcodes {
    public interface Setter { void set(int i); }

    private static final int[] VERSIONS = {V1_1, V1_2, V1_3, V1_4, V1_5, V1_6};

    private static final class Loader extends ClassLoader {
        Loader() { super(ClassFilesTest.class.getClassLoader()); }
        Class<?> define(String name, byte[] b) { return defineClass(name.replace('/', '.'), b, 0, b.length); }
    }

    @BeforeAll
    static void open() throws Exception {
        Fixture.open();
    }

    private static ClassWriter start(int version, String name) {
        ClassWriter cw = new ClassWriter(ClassWriter.COMPUTE_MAXS);
        cw.visit(version, ACC_PUBLIC | ACC_SUPER, name, null, "java/lang/Object", new String[] {"towa/weave/ClassFilesTest$Setter"});
        cw.visitField(ACC_PUBLIC, "x", "I", null, null).visitEnd();
        cw.visitField(ACC_PUBLIC | ACC_VOLATILE, "w", "J", null, null).visitEnd();
        MethodVisitor mv = cw.visitMethod(ACC_PUBLIC, "<init>", "()V", null, null);
        mv.visitCode();
        mv.visitVarInsn(ALOAD, 0);
        mv.visitMethodInsn(INVOKESPECIAL, "java/lang/Object", "<init>", "()V", false);
        mv.visitInsn(RETURN);
        end(mv);
        return cw;
    }

    private static void end(MethodVisitor mv) {
        mv.visitMaxs(0, 0);
        mv.visitEnd();
    }

    private static void put(MethodVisitor mv, String name) {
        mv.visitVarInsn(ALOAD, 0);
        mv.visitVarInsn(ILOAD, 1);
        mv.visitFieldInsn(PUTFIELD, name, "x", "I");
    }

    private static void putWide(MethodVisitor mv, String name) {
        mv.visitVarInsn(ALOAD, 0);
        mv.visitVarInsn(ILOAD, 1);
        mv.visitInsn(I2L);
        mv.visitFieldInsn(PUTFIELD, name, "w", "J");
    }

    /** A store in the method, one in a subroutine called by jsr twice, left by ret. */
    private static byte[] withSubroutine(int version, String name) {
        ClassWriter cw = start(version, name);
        MethodVisitor mv = cw.visitMethod(ACC_PUBLIC, "set", "(I)V", null, null);
        mv.visitCode();
        put(mv, name);
        Label sub = new Label();
        mv.visitJumpInsn(JSR, sub);
        mv.visitJumpInsn(JSR, sub);
        mv.visitInsn(RETURN);
        mv.visitLabel(sub);
        mv.visitVarInsn(ASTORE, 2);
        put(mv, name);
        putWide(mv, name);
        mv.visitVarInsn(RET, 2);
        end(mv);
        return cw.toByteArray();
    }

    @Test
    void oldVersionsWithSubroutines() throws Exception {
        for (int version : VERSIONS) {
            String name = "towa/weave/Old" + (version & 0xffff) + "_" + (version >>> 16);
            Class<?> c = new Loader().define(name, withSubroutine(version, name));
            assertFalse(Woven.isUnwoven(c), name);
            Setter s = (Setter) c.getDeclaredConstructor().newInstance();
            Fixture.hold(s);
            long before = Towa.metrics().stores();
            for (int i = 0; i < 20_000; i++) {
                s.set(i);
                Fixture.same(s, name);
            }
            // Per call three plain stores, and two volatile ones.
            assertEquals(20_000L * 5, Towa.metrics().stores() - before, name);
        }
    }

    public static class Base implements Setter {
        public int x;

        @Override
        public void set(int i) {
            x = -i;
        }
    }

    /** A field of its own that no replica has, and an inherited one of that name and another type: as obfuscators make them. */
    @Test
    void aTransientFieldBesideAnInheritedOneOfItsName() throws Exception {
        String name = "towa/weave/Shadow", base = "towa/weave/ClassFilesTest$Base";
        ClassWriter cw = new ClassWriter(ClassWriter.COMPUTE_MAXS);
        cw.visit(V1_6, ACC_PUBLIC | ACC_SUPER, name, null, base, null);
        cw.visitField(ACC_PUBLIC | ACC_TRANSIENT, "x", "J", null, null).visitEnd();
        MethodVisitor mv = cw.visitMethod(ACC_PUBLIC, "<init>", "()V", null, null);
        mv.visitCode();
        mv.visitVarInsn(ALOAD, 0);
        mv.visitMethodInsn(INVOKESPECIAL, base, "<init>", "()V", false);
        mv.visitInsn(RETURN);
        end(mv);
        mv = cw.visitMethod(ACC_PUBLIC, "set", "(I)V", null, null);
        mv.visitCode();
        put(mv, name);
        mv.visitVarInsn(ALOAD, 0);
        mv.visitInsn(LCONST_1);
        mv.visitFieldInsn(PUTFIELD, name, "x", "J");
        mv.visitInsn(RETURN);
        end(mv);
        Class<?> c = new Loader().define(name, cw.toByteArray());
        Setter s = (Setter) c.getDeclaredConstructor().newInstance();
        Fixture.hold(s);
        long before = Towa.metrics().stores();
        for (int i = 0; i < 100; i++) {
            s.set(i);
            Fixture.same(s, name);
        }
        assertEquals(100, Towa.metrics().stores() - before, "the inherited field is mirrored, the transient one is not");
    }

    @Test
    void methodThatWouldGrowTooLong() throws Exception {
        String name = "towa/weave/Long";
        ClassWriter cw = start(V1_6, name);
        MethodVisitor mv = cw.visitMethod(ACC_PUBLIC, "set", "(I)V", null, null);
        mv.visitCode();
        for (int i = 0; i < 12_000; i++) put(mv, name);
        mv.visitInsn(RETURN);
        end(mv);
        mv = cw.visitMethod(ACC_PUBLIC, "other", "(I)V", null, null);
        mv.visitCode();
        put(mv, name);
        mv.visitInsn(RETURN);
        end(mv);
        Class<?> c = new Loader().define(name, cw.toByteArray());
        Setter s = (Setter) c.getDeclaredConstructor().newInstance();
        s.set(3);
        assertEquals(3, c.getField("x").getInt(s));
        assertTrue(Woven.isUnwoven(c), "its instances must be refused");
        assertThrows(NotDurableException.class, () -> Fixture.hold(s));
        boolean named = false;
        for (Agent.Failure f : Agent.failures()) named |= f.className.equals(name);
        assertTrue(named);
    }

    @Test
    void constructorWithTwoSuperCallsStaysAsItIs() throws Exception {
        String name = "towa/weave/TwoSupers";
        ClassWriter cw = start(V1_6, name);
        MethodVisitor mv = cw.visitMethod(ACC_PUBLIC, "<init>", "(I)V", null, null);
        mv.visitCode();
        Label other = new Label();
        mv.visitVarInsn(ILOAD, 1);
        mv.visitJumpInsn(IFEQ, other);
        for (int k = 0; k < 2; k++) {
            mv.visitVarInsn(ALOAD, 0);
            mv.visitMethodInsn(INVOKESPECIAL, "java/lang/Object", "<init>", "()V", false);
            put(mv, name);
            mv.visitInsn(RETURN);
            if (k == 0) {
                mv.visitLabel(other);
                mv.visitFrame(F_FULL, 2, new Object[] {UNINITIALIZED_THIS, INTEGER}, 0, new Object[0]);
            }
        }
        end(mv);
        mv = cw.visitMethod(ACC_PUBLIC, "set", "(I)V", null, null);
        mv.visitCode();
        mv.visitInsn(RETURN);
        end(mv);
        Class<?> c = new Loader().define(name, cw.toByteArray());
        assertEquals(7, c.getField("x").getInt(c.getDeclaredConstructor(int.class).newInstance(7)));
        assertTrue(Woven.isUnwoven(c));
    }

    public static class Target { public int x; }
    public static Target target = new Target();

    @Test
    void hiddenClassesAreWoven() throws Exception {
        String name = "towa/weave/HiddenOne", target = "towa/weave/ClassFilesTest$Target";
        ClassWriter cw = start(V1_6, name);
        MethodVisitor mv = cw.visitMethod(ACC_PUBLIC, "set", "(I)V", null, null);
        mv.visitCode();
        mv.visitFieldInsn(GETSTATIC, "towa/weave/ClassFilesTest", "target", 'L' + target + ';');
        mv.visitVarInsn(ILOAD, 1);
        mv.visitFieldInsn(PUTFIELD, target, "x", "I");
        mv.visitInsn(RETURN);
        end(mv);
        Class<?> c = MethodHandles.lookup().defineHiddenClass(cw.toByteArray(), true).lookupClass();
        Setter s = (Setter) c.getDeclaredConstructor().newInstance();
        Fixture.hold(ClassFilesTest.target);
        for (int i = 0; i < 20_000; i++) {
            s.set(i);
            Fixture.same(ClassFilesTest.target, "hidden class");
        }
        assertTrue(Woven.isUnwoven(c), "a hidden class cannot be named in a file");
        assertThrows(NotDurableException.class, () -> Fixture.hold(s));
    }

    @Test
    void theGateWaitsForThoseInside() throws Exception {
        AtomicBoolean passed = new AtomicBoolean();
        for (int round = 0; round < 5; round++) {
            passed.set(false);
            int token = WhiteGate.enter();
            Thread promoter = new Thread(() -> {
                WhiteGate.awaitOld();
                passed.set(true);
            });
            promoter.start();
            Thread.sleep(20);
            assertFalse(passed.get());
            WhiteGate.exit(WhiteGate.enter());
            WhiteGate.exit(token);
            promoter.join(5000);
            assertTrue(passed.get());
        }
    }
}
