package io.towa.agent;

import org.objectweb.asm.Type;

/**
 * Calls that write without a store instruction: which are redirected, and which are followed by a barrier for their array arguments.
 *
 * <p>Always true: a method that C2 replaces by an intrinsic, and a native method, is treated at its call sites (a barrier woven into an
 * intrinsic's body would be skipped once compiled). Digest and cipher state in fields is not listed: such objects cannot be durable.
 */
final class Calls {
    /** What to do with one call. */
    static final class Call {
        /** Redirect: class and descriptor of the static method called instead; null for a wrapped call. */
        String owner;
        String name;
        String desc;
        /** Wrap: quadruples (array argument, first element argument, count argument, argument subtracted from the count); -1: none. */
        int[] arrays;
    }

    private static final String UNSAFE = "jdk/internal/misc/Unsafe";
    private static final String ACCESSOR = "jdk/internal/reflect/FieldAccessor";
    private static final String[] FLAVOURS = {"Plain", "Acquire", "Release"};

    /** owner, name, then array:from:count[-minus] or array alone (the whole array), comma separated; any descriptor. */
    private static final String[][] WRAPPED = {
        {"java/lang/StringLatin1", "inflate", "2:3:4"},
        {"java/lang/StringUTF16", "getChars", "3:4:2-1"},
        {"java/lang/StringUTF16", "compress", "2:3:4"},
        {"java/lang/StringUTF16", "putChar", "0"},
        {"java/lang/StringCoding", "implEncodeISOArray", "2:3:4"},
        {"java/lang/StringCoding", "implEncodeAsciiArray", "2:3:4"},
        {"sun/nio/cs/ISO_8859_1$Encoder", "implEncodeISOArray", "2:3:4"},
        {"java/util/Base64$Decoder", "decodeBlock", "3"},
        {"java/util/Base64$Encoder", "encodeBlock", "3"},
        {"java/util/DualPivotQuicksort", "sort", "1"},
        {"java/util/DualPivotQuicksort", "partition", "1"},
        {"java/math/BigInteger", "implMultiplyToLen", "4"},
        {"java/math/BigInteger", "implSquareToLen", "2"},
        {"java/math/BigInteger", "implMontgomeryMultiply", "5"},
        {"java/math/BigInteger", "implMontgomerySquare", "4"},
        {"java/math/BigInteger", "implMulAdd", "0"},
        {"java/math/BigInteger", "shiftLeftImplWorker", "0"},
        {"java/math/BigInteger", "shiftRightImplWorker", "0"},
        {"com/sun/crypto/provider/AESCrypt", "implEncryptBlock", "2"},
        {"com/sun/crypto/provider/AESCrypt", "implDecryptBlock", "2"},
        {"com/sun/crypto/provider/ChaCha20Cipher", "implChaCha20Block", "1"},
        {"com/sun/crypto/provider/CipherBlockChaining", "implEncrypt", "3"},
        {"com/sun/crypto/provider/CipherBlockChaining", "implDecrypt", "3"},
        {"com/sun/crypto/provider/CounterMode", "implCrypt", "3"},
        {"com/sun/crypto/provider/ElectronicCodeBook", "implECBEncrypt", "3"},
        {"com/sun/crypto/provider/ElectronicCodeBook", "implECBDecrypt", "3"},
        {"com/sun/crypto/provider/GaloisCounterMode", "implGCMCrypt0", "3,5"},
        {"java/io/FileInputStream", "readBytes", "0:1:2"},
        {"java/io/RandomAccessFile", "readBytes0", "0:1:2"},
        {"java/util/zip/Inflater", "inflateBytesBytes", "4:5:6"},
        {"java/util/zip/Inflater", "inflateBufferBytes", "3:4:5"},
        {"java/util/zip/Deflater", "deflateBytesBytes", "4:5:6"},
        {"java/util/zip/Deflater", "deflateBufferBytes", "3:4:5"},
        {"jdk/internal/vm/vector/VectorSupport", "store", "3"},
        {"jdk/internal/vm/vector/VectorSupport", "storeMasked", "4"},
        {"jdk/internal/vm/vector/VectorSupport", "storeWithMap", "5"},
        {"java/lang/StackTraceElement", "initStackTraceElements", "0"},
        // Natives that only read their arrays, and often.
        {"java/io/FileOutputStream", "writeBytes", ""},
        {"java/io/RandomAccessFile", "writeBytes0", ""},
        {"java/util/zip/CRC32", "updateBytes0", ""},
        {"java/util/zip/Adler32", "updateBytes", ""},
        {"java/util/zip/Inflater", "inflateBytesBuffer", ""},
        {"java/util/zip/Deflater", "deflateBytesBuffer", ""},
        {"java/lang/ClassLoader", "defineClass0", ""},
        {"java/lang/ClassLoader", "defineClass1", ""},
    };

    private static final NameMap<String> SPECS = new NameMap<String>();
    private static final NameMap<Boolean> OWNERS = new NameMap<Boolean>();

    static {
        for (int i = 0; i < WRAPPED.length; i++) {
            SPECS.put(WRAPPED[i][0] + '.' + WRAPPED[i][1], WRAPPED[i][2]);
            OWNERS.put(WRAPPED[i][0], Boolean.TRUE);
        }
        OWNERS.put(UNSAFE, Boolean.TRUE);
        OWNERS.put("java/lang/System", Boolean.TRUE);
        OWNERS.put("java/lang/reflect/Array", Boolean.TRUE);
        OWNERS.put(ACCESSOR, Boolean.TRUE);
        OWNERS.put("jdk/internal/access/JavaLangAccess", Boolean.TRUE);
    }

    private Calls() {}

    /** May {@link #find} know a method of this class? */
    static boolean ownerKnown(String owner) {
        return OWNERS.get(owner) != null;
    }

    /** null: an ordinary call. */
    static Call find(String owner, String name, String desc) {
        if (owner.equals(UNSAFE)) return unsafe(name, desc);
        if (owner.equals("java/lang/System")) {
            return name.equals("arraycopy") ? redirect("Redirects", name, desc) : null;
        }
        if (owner.equals("java/lang/reflect/Array")) return name.startsWith("set") ? redirect("Redirects", name, desc) : null;
        // Field.set would show a refused store as an InternalError.
        if (owner.equals(ACCESSOR)) return name.equals("set") ? redirect("Redirects", "setField", "(L" + owner + ';' + desc.substring(1)) : null;
        if (owner.equals("jdk/internal/access/JavaLangAccess")) {
            boolean hidden = name.equals("defineClass") && desc.startsWith("(Ljava/lang/ClassLoader;Ljava/lang/Class;");
            return hidden ? redirect("Redirects", name, "(L" + owner + ';' + desc.substring(1)) : null;
        }
        String spec = SPECS.get(owner + '.' + name);
        if (spec == null || spec.length() == 0) return null;
        // The public sort(int[], ...) overloads are ordinary Java; the intrinsic takes the array as an Object.
        if (owner.equals("java/util/DualPivotQuicksort") && !desc.startsWith("(Ljava/lang/Class;Ljava/lang/Object;")) return null;
        if (!fits(spec, desc)) return null;
        // Inflating into bytes counts characters of two bytes.
        if (name.equals("inflate") && desc.startsWith("([BI[B")) return wrap("2");
        return wrap(spec);
    }

    /** An overload that has no array in the place where the written one would be is another method. */
    private static boolean fits(String spec, String desc) {
        Type[] args = Type.getArgumentTypes(desc);
        for (int i = 0; i < spec.length(); i++) {
            if (i != 0 && spec.charAt(i - 1) != ',') continue;
            int k = spec.charAt(i) - '0';
            if (k >= args.length || args[k].getSort() < Type.ARRAY) return false;
        }
        return true;
    }

    /** A native method of the calling class itself: everything in its arrays may have changed. */
    static Call findOwnNative(String owner, String name, String desc) {
        String spec = SPECS.get(owner + '.' + name);
        if (spec != null) return spec.length() == 0 ? null : wrap(spec);
        StringBuilder all = new StringBuilder();
        Type[] args = Type.getArgumentTypes(desc);
        for (int i = 0; i < args.length; i++) {
            if (args[i].getSort() == Type.ARRAY) all.append(all.length() == 0 ? "" : ",").append(i);
        }
        return wrap(all.toString());
    }

    private static Call redirect(String to, String name, String desc) {
        Call c = new Call();
        c.owner = "io/towa/barrier/" + to;
        c.name = name;
        c.desc = desc;
        return c;
    }

    private static Call unsafe(String name, String desc) {
        if (!desc.startsWith("(Ljava/lang/Object;")) return null;
        String full = "(L" + UNSAFE + ';' + desc.substring(1);
        if (name.startsWith("put") || name.equals("setMemory") || name.equals("copyMemory") || name.equals("copySwapMemory")) {
            return redirect("UnsafeWrites", name, full);
        }
        if (name.startsWith("getAnd")) return redirect("UnsafeGetAnd", strong(name), full, name);
        if (name.startsWith("compareAnd")) return redirect("UnsafeAtomics", strong(name), full);
        if (name.startsWith("weakCompareAnd")) return redirect("UnsafeAtomics", "c" + strong(name).substring(5), full);
        return null;
    }

    private static Call redirect(String to, String name, String desc, String original) {
        return redirect(original.startsWith("getAndSetReference") ? "UnsafeAtomics" : to, name, desc);
    }

    private static String strong(String name) {
        for (int i = 0; i < FLAVOURS.length; i++) {
            if (name.endsWith(FLAVOURS[i])) return name.substring(0, name.length() - FLAVOURS[i].length());
        }
        return name;
    }

    private static Call wrap(String spec) {
        Call c = new Call();
        int n = 1;
        for (int i = 0; i < spec.length(); i++) if (spec.charAt(i) == ',') n++;
        c.arrays = new int[n * 4];
        for (int i = 0; i < c.arrays.length; i++) c.arrays[i] = -1;
        int field = 0;
        int of = 0;
        for (int i = 0; i < spec.length(); i++) {
            char ch = spec.charAt(i);
            if (ch == ',') {
                of++;
                field = 0;
            } else if (ch == ':' || ch == '-') {
                field++;
            } else {
                c.arrays[of * 4 + field] = ch - '0';
            }
        }
        return c;
    }
}
