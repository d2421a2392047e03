package io.towa.graph;

import io.towa.TowaOptions;
import io.towa.agent.Agent;
import java.lang.instrument.Instrumentation;
import java.lang.reflect.Field;
import java.lang.reflect.InvocationHandler;
import java.lang.reflect.Method;
import java.lang.reflect.Proxy;
import java.nio.file.Files;
import java.nio.file.Path;

/** Pools for tests without the agent: nothing is woven, so what a test stores after {@link #save} it mirrors itself. */
final class TestPool {
    /** The root of the tests. */
    static Object root;
    static Object second;

    private TestPool() {}

    static {
        try {
            Field f = Agent.class.getDeclaredField("instrumentation");
            f.setAccessible(true);
            f.set(null, Proxy.newProxyInstance(TestPool.class.getClassLoader(), new Class<?>[] {Instrumentation.class}, new Nothing()));
        } catch (NoSuchFieldException e) {
            // an agent that needs none
        } catch (IllegalAccessException e) {
            throw new AssertionError(e);
        }
    }

    /** Does what it is asked by doing nothing. */
    private static final class Nothing implements InvocationHandler {
        @Override
        public Object invoke(Object proxy, Method m, Object[] args) {
            Class<?> r = m.getReturnType();
            if (r.isArray()) {
                return java.lang.reflect.Array.newInstance(r.getComponentType(), 0);
            }
            return r == boolean.class ? (Object) Boolean.TRUE : r == long.class ? (Object) 0L : null;
        }
    }

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
        DurableGraph.open(file, TowaOptions.DEFAULT);
    }

    /** Makes {@code c.field} a root of the open pool, with its value of now. */
    static void root(Class<?> c, String field) {
        try {
            Roots.Root r = Roots.add(c, c.getDeclaredField(field), true);
            if (r != null) {
                Roots.mirror(r);
            }
        } catch (NoSuchFieldException e) {
            throw new AssertionError(e);
        }
    }

    /** A pool with {@code value} as its root. */
    static Path save(Object value) {
        Path p = file();
        root = value;
        open(p);
        root(TestPool.class, "root");
        DurableGraph.close();
        return p;
    }

    /** What the pool has as its root, now. */
    static Object load(Path p) {
        return load(p, TowaOptions.DEFAULT);
    }

    static Object load(Path p, TowaOptions options) {
        root = null;
        DurableGraph.open(p, options);
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
}
