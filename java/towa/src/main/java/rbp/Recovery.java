package rbp;

import io.towa.PoolException;
import io.towa.PoolException.Reason;
import io.towa.Towa;
import io.towa.TowaOptions;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;

/**
 * Recovery as the thesis has it (section 3.2): {@link #setNvmFile} first, then, once, {@link #recovery} or {@link #init}. Persistence
 * begins when either returns.
 */
public final class Recovery {
    private static volatile Path file;

    private Recovery() {}

    /**
     * The file that durable objects are kept in.
     *
     * @param filepath on DAX memory, or any other
     */
    public static void setNvmFile(String filepath) {
        file = Path.of(filepath);
    }

    private static Path file() {
        if (file == null) {
            throw new IllegalStateException("call Recovery.setNvmFile first");
        }
        return file;
    }

    /**
     * Whether the file holds durable objects.
     *
     * @return false: {@link #init} is to be called, else {@link #recovery}
     */
    public static boolean isValidData() {
        return Towa.holdsData(file());
    }

    /**
     * Gives every durable root the value that it had.
     *
     * @param clds loaders of the program's classes, the first that knows a class wins; none: the thread's context class loader
     */
    public static void recovery(ClassLoader[] clds) {
        if (!isValidData()) {
            throw new PoolException(Reason.FOREIGN, file() + " holds no durable objects: call Recovery.init");
        }
        ClassLoader loader = clds == null || clds.length == 0 ? null : clds.length == 1 ? clds[0] : new Chain(clds);
        Towa.open(file(), TowaOptions.DEFAULT.withLoader(loader));
    }

    /** Discards what the file holds, and begins with the roots as they are. */
    public static void init() {
        try {
            if (isValidData()) {
                Files.delete(file());
            }
        } catch (IOException e) {
            throw new PoolException(Reason.IO, file() + ": " + e.getMessage(), e);
        }
        Towa.open(file());
    }

    /** Asks several loaders in turn. */
    private static final class Chain extends ClassLoader {
        private final ClassLoader[] loaders;

        Chain(ClassLoader[] loaders) {
            super(null);
            this.loaders = loaders.clone();
        }

        @Override
        protected Class<?> findClass(String name) throws ClassNotFoundException {
            for (int i = 0; i < loaders.length; i++) {
                try {
                    return Class.forName(name, false, loaders[i]);
                } catch (ClassNotFoundException e) {
                    // the next one may know it
                }
            }
            throw new ClassNotFoundException(name);
        }
    }
}
