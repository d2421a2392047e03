package io.towa;

/** What Towa throws: it says what, where, and what to do next. Nothing durable is lost or changed by what it reports. */
public class TowaException extends RuntimeException {
    private static final long serialVersionUID = 1;

    /**
     * One that nothing else has caused.
     *
     * @param message what, where, and what to do next
     */
    public TowaException(String message) {
        super(message);
    }

    /**
     * One that something else has caused.
     *
     * @param message what, where, and what to do next
     * @param cause what it comes from
     */
    public TowaException(String message, Throwable cause) {
        super(message, cause);
    }
}
