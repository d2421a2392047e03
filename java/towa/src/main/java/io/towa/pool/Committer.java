package io.towa.pool;

import io.towa.TowaOptions;

/** Commits of a private image. */
public final class Committer {
    private Committer() {}

    public static Committer start(PoolFile pool, TowaOptions options) {
        return null;
    }

    public static void stop(Committer c) {}

    public void sync() {}
}
