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

    /** Its class' initialiser opens the pool, and would store to it afterwards. */
    static final class Late {
        static {
            openAt(System.getProperty("pool"));
        }

        @DurableRoot static List<String> names = new ArrayList<>(List.of("first"));
        @DurableRoot static String[] words = {"first"};
        static List<String> ordinary = new ArrayList<>(List.of("first"));

        private Late() {}
    }

    /** Changes what it finds. */
    static final class OpensItself {
        public static void main(String[] args) {
            System.setProperty("pool", args[0]);
            System.out.println("found " + Late.names + " " + Late.words[0] + " " + Late.ordinary);
            Late.names.add("more");
            Late.words[0] = "again";
            Late.ordinary.add("more");
        }
    }
}
