package io.towa;

/** What Towa throws: it says what, where, and what to do next. Nothing durable is lost or changed by what it reports. */
public class TowaException extends RuntimeException {
    private static final long serialVersionUID = 1;

    public TowaException(String message) {
        super(message);
    }

    public TowaException(String message, Throwable cause) {
        super(message, cause);
    }
}
