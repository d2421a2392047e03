package io.towa.pool;

import java.io.IOException;
import java.lang.reflect.Field;
import java.nio.ByteBuffer;

/** The pool's file of a committer, whose next sync fails, once. */
public final class FailingSync implements Disk {
    private final Disk file;
    private boolean failed;

    private FailingSync(Disk file) {
        this.file = file;
    }

    public static void of(Committer committer) throws ReflectiveOperationException {
        Field data = Committer.class.getDeclaredField("data");
        data.setAccessible(true);
        data.set(committer, new FailingSync((Disk) data.get(committer)));
    }

    @Override
    public boolean read(ByteBuffer into, long at) throws IOException {
        return file.read(into, at);
    }

    @Override
    public void write(ByteBuffer from, long at) throws IOException {
        file.write(from, at);
    }

    @Override
    public void force() throws IOException {
        if (!failed) {
            failed = true;
            throw new IOException("Input/output error");
        }
        file.force();
    }

    @Override
    public void evict(long from, long bytes) {
        file.evict(from, bytes);
    }

    @Override
    public void truncate(long size) throws IOException {
        file.truncate(size);
    }

    @Override
    public long size() throws IOException {
        return file.size();
    }
}
