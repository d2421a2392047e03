package io.towa;

/** A pool file that cannot be opened, or cannot take what it was given. The file is as it was. */
public class PoolException extends TowaException {
    private static final long serialVersionUID = 1;

    /** Why. */
    public enum Reason {
        /** Not a pool of the Java door, or one that other users can write. */
        FOREIGN,
        /** Made by a newer version. */
        NEWER,
        /** A checksum or a reference is wrong, or the file is too short. */
        DAMAGED,
        /** Another process, or this one, has it open. */
        BUSY,
        /** No space: on the file system, or within the pool's capacity. */
        FULL,
        /** A class has changed in a way that its saved objects cannot follow. */
        CHANGED_CLASS,
        /** The file system said no. */
        IO,
        /** No agent, or a Java that is too old, or started so that it cannot do what the pool's medium needs. */
        NO_AGENT
    }

    /** As {@link #reason()}. */
    private final Reason reason;

    /**
     * One that nothing else has caused.
     *
     * @param reason which kind
     * @param message what, where, and what to do next
     */
    public PoolException(Reason reason, String message) {
        super(message);
        this.reason = reason;
    }

    /**
     * One that something else has caused.
     *
     * @param reason which kind
     * @param message what, where, and what to do next
     * @param cause what it comes from
     */
    public PoolException(Reason reason, String message, Throwable cause) {
        super(message, cause);
        this.reason = reason;
    }

    /**
     * Which kind of failure this is, for programs; for people there is the message.
     *
     * @return the kind
     */
    public Reason reason() {
        return reason;
    }
}
