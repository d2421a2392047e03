package io.towa.graph;

import java.lang.reflect.Field;
import java.net.URI;
import java.net.URL;
import java.net.URLClassLoader;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import javax.tools.JavaFileObject;
import javax.tools.SimpleJavaFileObject;
import javax.tools.ToolProvider;

/** Classes as they were and as they are: each version is compiled from its source, below a folder of the test, and has a loader of its own. */
final class Versions {
    private final Path dir;
    private int compiled;

    Versions(Path dir) {
        this.dir = dir;
    }

    /** A loader with the classes of this source, named by their file. */
    ClassLoader classes(String source) throws Exception {
        Path out = Files.createDirectory(dir.resolve("v" + compiled++));
        JavaFileObject file = new SimpleJavaFileObject(URI.create("string:///All.java"), JavaFileObject.Kind.SOURCE) {
            @Override
            public CharSequence getCharContent(boolean ignore) {
                return source;
            }
        };
        if (!ToolProvider.getSystemJavaCompiler().getTask(null, null, null, List.of("-d", out.toString()), null, List.of(file)).call()) {
            throw new AssertionError("does not compile: " + source);
        }
        return new URLClassLoader(new URL[] {out.toUri().toURL()}, Versions.class.getClassLoader());
    }

    static Object make(ClassLoader l, String name) throws Exception {
        var c = l.loadClass(name).getDeclaredConstructor();
        c.setAccessible(true);
        return c.newInstance();
    }

    static Object get(Object o, String field) throws Exception {
        for (Class<?> c = o.getClass(); c != null; c = c.getSuperclass()) {
            try {
                Field f = c.getDeclaredField(field);
                f.setAccessible(true);
                return f.get(o);
            } catch (NoSuchFieldException e) {
                // further up
            }
        }
        throw new NoSuchFieldException(field);
    }
}
