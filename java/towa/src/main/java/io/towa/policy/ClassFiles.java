package io.towa.policy;

import java.io.IOException;
import java.io.InputStream;

/** Class files as a loader finds them: what the policy asks of them, no reflection tells. */
final class ClassFiles {
    private ClassFiles() {}

    /**
     * The file of a class.
     *
     * @param loader null: the boot loader
     * @param name binary or internal
     * @return null if there is none, or it cannot be read
     */
    static byte[] read(ClassLoader loader, String name) {
        String path = name.replace('.', '/') + ".class";
        try (InputStream in = loader == null ? ClassLoader.getSystemResourceAsStream(path) : loader.getResourceAsStream(path)) {
            return in == null ? null : in.readAllBytes();
        } catch (IOException | RuntimeException e) {
            return null;
        }
    }
}
