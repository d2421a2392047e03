package io.towa.graph;

import io.towa.medium.Nvm;
import io.towa.pool.Layout;
import jdk.internal.misc.Unsafe;

/** Makes an object from its replica, with its primitives as its class has them today. */
final class FromReplica {
    private static final Unsafe U = Unsafe.getUnsafe();

    private FromReplica() {}

    /** The object of the replica at {@code at}, whose content fits the pool; references are null. */
    static Object make(long at, ClassMapping c) throws InstantiationException {
        if (c.form == Layout.FORM_ARRAY) {
            int length = Nvm.getInt(at + Layout.LENGTH);
            if (c.info.element == ClassInfo.REFERENCE) {
                return java.lang.reflect.Array.newInstance(c.type.getComponentType(), length);
            }
            Object a = newArray(c.info.element, length);
            Nvm.copyOut(at + Layout.DATA, a, c.info.elementBase, c.info.arrayBytes(length));
            return a;
        }
        Object o = U.allocateInstance(c.type);
        fillPrimitives(o, at, c);
        return o;
    }

    private static Object newArray(char element, int length) {
        switch (element) {
            case 'Z':
                return new boolean[length];
            case 'B':
                return U.allocateUninitializedArray(byte.class, length);
            case 'C':
                return U.allocateUninitializedArray(char.class, length);
            case 'S':
                return U.allocateUninitializedArray(short.class, length);
            case 'I':
                return U.allocateUninitializedArray(int.class, length);
            case 'J':
                return U.allocateUninitializedArray(long.class, length);
            case 'F':
                return U.allocateUninitializedArray(float.class, length);
            default:
                return U.allocateUninitializedArray(double.class, length);
        }
    }

    private static void fillPrimitives(Object o, long at, ClassMapping c) {
        int[] from = c.nvm[3];
        long[] to = c.dram[3];
        for (int i = 0; i < from.length; i++) {
            U.putLong(o, to[i], Nvm.getLong(at + from[i]));
        }
        from = c.nvm[2];
        to = c.dram[2];
        for (int i = 0; i < from.length; i++) {
            U.putInt(o, to[i], Nvm.getInt(at + from[i]));
        }
        from = c.nvm[1];
        to = c.dram[1];
        for (int i = 0; i < from.length; i++) {
            U.putShort(o, to[i], Nvm.getShort(at + from[i]));
        }
        from = c.nvm[0];
        to = c.dram[0];
        for (int i = 0; i < from.length; i++) {
            U.putByte(o, to[i], Nvm.getByte(at + from[i]));
        }
        for (int i = 0; i < c.wideNvm.length; i++) {
            long bits = Nvm.getBits(at + c.wideNvm[i], ClassInfo.bytes(c.wideFrom[i]));
            Slots.set(o, c.wideDram[i], c.wideTo[i], ClassMapping.widened(bits, c.wideFrom[i], c.wideTo[i]));
        }
    }

    private static final long STRING_VALUE = U.objectFieldOffset(String.class, "value");
    private static final long STRING_CODER = U.objectFieldOffset(String.class, "coder");

    /** Compiled code trusts a string's parts blindly. */
    static boolean isSoundString(Object o) {
        byte[] value = (byte[]) U.getReference(o, STRING_VALUE);
        byte coder = U.getByte(o, STRING_CODER);
        return value != null && (coder == 0 || coder == 1 && (value.length & 1) == 0);
    }
}
