package towa.weave;

import io.towa.DurableRoot;
import io.towa.Towa;
import io.towa.TowaOptions;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;

/** Programs of {@link RootsTest}, each run in a machine of its own. */
final class RootPrograms {
    private RootPrograms() {}

    private static void openAt(String file) {
        Towa.open(Path.of(file), TowaOptions.DEFAULT.withCapacity(64 << 20));
    }

    /** An instance field is marked. */
    static final class OfEachObject {
        @DurableRoot List<String> names = new ArrayList<>();

        public static void main(String[] args) {
            openAt(args[0]);
        }
    }

    /** A field of no reference type is marked. */
    static final class Primitive {
        @DurableRoot static int count;

        public static void main(String[] args) {
            openAt(args[0]);
        }
    }

    /** Has a field of a root's name. */
    static final class Defaults {
        static List<String> copied = List.of("default");

        private Defaults() {}
    }

    /** Its class' initialiser opens the pool, and would store to it afterwards. */
    static final class Late {
        static {
            openAt(System.getProperty("pool"));
        }

        @DurableRoot static List<String> names = new ArrayList<>(List.of("first"));
        @DurableRoot static String[] words = {"first"};
        static List<String> ordinary = new ArrayList<>(List.of("first"));
        /** Another class' field of that name is read: that says nothing of this one. */
        @DurableRoot static List<String> copied = new ArrayList<>(Defaults.copied);
        /** Stored to twice: the second time on purpose. */
        @DurableRoot static List<String> fresh = new ArrayList<>();
        /** It knows what was there. */
        @DurableRoot static List<String> counted;

        static {
            fresh = new ArrayList<>(List.of("fresh"));
            counted = counted == null ? List.of("1") : List.of(counted.get(0) + "1");
        }

        private Late() {}
    }

    /** Its root's class is one that only a loader of the program's own finds. */
    static final class OwnLoader extends ClassLoader {
        private OwnLoader() {
            super(OwnLoader.class.getClassLoader());
        }

        @Override
        protected Class<?> findClass(String name) throws ClassNotFoundException {
            String path = "/" + Plugin.class.getName().replace('.', '/') + ".class";
            try (java.io.InputStream in = OwnLoader.class.getResourceAsStream(path)) {
                // The same class by another name of equal length: in the constant pool only the text differs.
                byte[] file = new String(in.readAllBytes(), java.nio.charset.StandardCharsets.ISO_8859_1).replace("RootPrograms$Plugin", "RootPrograms$Plug_2")
                    .getBytes(java.nio.charset.StandardCharsets.ISO_8859_1);
                return defineClass(name, file, 0, file.length);
            } catch (java.io.IOException e) {
                throw new ClassNotFoundException(name, e);
            }
        }

        public static void main(String[] args) throws Exception {
            Class<?> plugin = new OwnLoader().loadClass("towa.weave.RootPrograms$Plug_2");
            openAt(args[0]);
            System.out.println("found " + plugin.getMethod("add").invoke(null));
        }
    }

    /** A class with a root. */
    public static final class Plugin {
        @DurableRoot static List<String> names = new ArrayList<>();

        private Plugin() {}

        /** @return what there is now */
        public static String add() {
            names.add("x");
            return names.toString();
        }
    }

    /** Changes what it finds. */
    static final class OpensItself {
        public static void main(String[] args) {
            System.setProperty("pool", args[0]);
            System.out.println("found " + Late.names + " " + Late.words[0] + " " + Late.ordinary + " " + Late.fresh + " " + Late.counted + " " + Late.copied);
            Late.names.add("more");
            Late.words[0] = "again";
            Late.ordinary.add("more");
            Late.fresh.add("more");
            Late.copied.add("more");
        }
    }
}
