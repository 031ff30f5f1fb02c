package sparkonce.pravega;

/** Thrown if Pravega does not respond. */
public class AwayException extends RuntimeException {
    AwayException(String message, Throwable cause) {
        super(message, cause);
    }
}
