import java.nio.file.Files;
import java.nio.file.Path;
import java.sql.Connection;
import java.sql.DriverManager;
import java.sql.ResultSet;
import java.sql.SQLException;
import java.sql.Statement;

/**
 * Connects with pgjdbc and the JDBC URL in the file that the first argument names.
 *
 * <p>Prints one line of JSON: driver, version, ok, encrypted, error.
 */
public class Jdbc {
    private static final int SECONDS_TO_CONNECT = 10;
    private static final String QUERY =
            "select current_user, (select ssl from pg_stat_ssl where pid = pg_backend_pid())";

    public static void main(String[] arguments) throws Exception {
        String url = Files.readString(Path.of(arguments[0]));
        boolean ok = false;
        boolean encrypted = false;
        String error = "";
        DriverManager.setLoginTimeout(SECONDS_TO_CONNECT);
        try (Connection connection = DriverManager.getConnection(url);
                Statement statement = connection.createStatement();
                ResultSet rows = statement.executeQuery(QUERY)) {
            rows.next();
            encrypted = rows.getBoolean(2);
            ok = true;
        } catch (SQLException exception) {
            error = withCauses(exception);
        }
        System.out.printf(
                "{\"driver\": \"pgjdbc\", \"version\": %s, \"ok\": %b, \"encrypted\": %b, \"error\": %s}%n",
                quote(org.postgresql.util.DriverInfo.DRIVER_VERSION), ok, encrypted, quote(error));
    }

    /** Returns the texts of an exception and its causes: pgjdbc names the reason for a failed handshake only there. */
    private static String withCauses(Throwable exception) {
        StringBuilder text = new StringBuilder(String.valueOf(exception.getMessage()));
        for (Throwable cause = exception.getCause(); cause != null; cause = cause.getCause()) {
            text.append(": ").append(cause.getMessage());
        }
        return text.toString();
    }

    /** Returns the text as a JSON string. */
    private static String quote(String text) {
        StringBuilder quoted = new StringBuilder("\"");
        for (char character : text.toCharArray()) {
            if (character == '"' || character == '\\') {
                quoted.append('\\').append(character);
            } else if (character < ' ') {
                quoted.append(String.format("\\u%04x", (int) character));
            } else {
                quoted.append(character);
            }
        }
        return quoted.append('"').toString();
    }
}
