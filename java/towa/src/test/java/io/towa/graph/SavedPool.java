package io.towa.graph;

import io.towa.TowaOptions;
import io.towa.pool.Layout;
import java.io.RandomAccessFile;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.file.Files;
import java.nio.file.Path;

/** Pools for tests without the agent: nothing is woven, so what a test stores after {@link #save} it mirrors itself. */
final class SavedPool {
    /** The root of the tests. */
    static Object root;
    static Object second;

    private SavedPool() {}

    static Path file() {
        try {
            Path p = Files.createTempFile(Files.isDirectory(Path.of("/dev/shm")) ? Path.of("/dev/shm") : Path.of(System.getProperty("java.io.tmpdir")),
                "towa-test", ".pool");
            Files.delete(p);
            p.toFile().deleteOnExit();
            return p;
        } catch (java.io.IOException e) {
            throw new AssertionError(e);
        }
    }

    static void open(Path file) {
        DurableGraph.open(file, TowaOptions.DEFAULT, false);
    }

    /** Makes {@code c.field} a root of the open pool, with its value of now. */
    static void root(Class<?> c, String field) {
        try {
            Class.forName(c.getName(), true, c.getClassLoader());
            Roots.Root r = Roots.add(c, c.getDeclaredField(field), true);
            if (r != null) {
                Roots.mirror(r);
            }
        } catch (NoSuchFieldException | ClassNotFoundException e) {
            throw new AssertionError(e);
        }
    }

    /** A pool with {@code value} as its root. */
    static Path save(Object value) {
        Path p = file();
        root = value;
        open(p);
        root(SavedPool.class, "root");
        DurableGraph.close();
        return p;
    }

    /** What the pool has as its root, now. */
    static Object load(Path p) {
        return load(p, TowaOptions.DEFAULT);
    }

    static Object load(Path p, TowaOptions options) {
        root = null;
        DurableGraph.open(p, options, false);
        try {
            java.util.List<String> differs = Checker.check();
            if (!differs.isEmpty()) {
                throw new AssertionError(differs.toString());
            }
        } finally {
            DurableGraph.close();
        }
        return root;
    }

    /** {@code value}, saved and brought back. */
    static Object roundTrip(Object value) {
        return load(save(value));
    }

    /** The file, up to its frontier: so much of a sparse one is all. */
    static byte[] image(Path p) throws java.io.IOException {
        try (RandomAccessFile f = new RandomAccessFile(p.toFile(), "r")) {
            f.seek(Layout.FRONTIER);
            byte[] b = new byte[8];
            f.readFully(b);
            byte[] all = new byte[(int) ByteBuffer.wrap(b).order(ByteOrder.LITTLE_ENDIAN).getLong()];
            f.seek(0);
            f.readFully(all);
            return all;
        }
    }
}
