import java.sql.Connection;
import java.sql.DatabaseMetaData;
import java.sql.DriverManager;
import java.sql.PreparedStatement;
import java.sql.ResultSet;
import java.sql.SQLException;
import java.sql.Statement;
import java.util.ArrayList;
import java.util.List;

/** What DBeaver and other tools do through PostgreSQL's JDBC driver; prints a line for each thing. */
public class Jdbc {
    private static String rows(ResultSet found, int... columns) throws SQLException {
        List<String> rows = new ArrayList<>();
        while (found.next()) {
            List<String> row = new ArrayList<>();
            for (int column : columns) row.add(found.getString(column));
            rows.add(String.join(" ", row));
        }
        return String.join(", ", rows);
    }

    private static void say(String name, Object value) {
        System.out.println(name + ": " + value);
    }

    private static String state(Statement statement, String sql) {
        try {
            statement.executeQuery(sql);
            return "done";
        } catch (SQLException error) {
            return error.getSQLState();
        }
    }

    private static void describe(DatabaseMetaData data) throws SQLException {
        say("product", data.getDatabaseProductName());
        say("catalogs", rows(data.getCatalogs(), 1));
        say("schemas", rows(data.getSchemas(), 1));
        say("tables", rows(data.getTables(null, "public", "%", new String[] {"TABLE"}), 3, 4));
        say("columns", rows(data.getColumns(null, "public", "stock", "%"), 4, 6, 18));
        say("key", rows(data.getPrimaryKeys(null, "public", "kinds"), 4, 5));
        say("index", rows(data.getIndexInfo(null, "public", "kinds", false, false), 6, 9));
        say("foreign keys", rows(data.getImportedKeys(null, "public", "stock"), 1));
        say("rowid", rows(data.getBestRowIdentifier(null, "public", "stock", 0, true), 2));
        say("functions", rows(data.getFunctions(null, null, "%"), 3));
        say("types", rows(data.getTypeInfo(), 1).contains("int8"));
        say("longest name", data.getMaxColumnNameLength());
    }

    public static void main(String[] arguments) throws Exception {
        try (Connection connection = DriverManager.getConnection(arguments[0], "anyone", "");
                Statement statement = connection.createStatement()) {
            describe(connection.getMetaData());
            try (PreparedStatement asked = connection.prepareStatement("SELECT pieces FROM stock WHERE item = ? AND pieces > ?")) {
                for (int time = 0; time < 7; time++) { // the driver prepares it at the server after five times
                    asked.setString(1, "tea");
                    asked.setLong(2, 1);
                    say("prepared", rows(asked.executeQuery(), 1));
                }
            }
            connection.setAutoCommit(false);
            statement.setFetchSize(1000);
            ResultSet many = statement.executeQuery("SELECT i FROM range(25000) t(i)");
            int count = 0;
            while (many.next()) count++;
            say("in portions", count);
            connection.commit();
            connection.setAutoCommit(true);
            ResultSet kinds = statement.executeQuery("SELECT * FROM kinds WHERE id = 1");
            kinds.next();
            say("kinds", kinds.getBigDecimal(3) + " " + kinds.getTimestamp(4) + " " + kinds.getDate(5) + " " + kinds.getBytes(7).length
                    + " " + kinds.getObject(8).getClass().getSimpleName() + " " + kinds.getArray(10) + " " + kinds.getBoolean(12));
            say("write", state(statement, "DELETE FROM stock RETURNING item"));
            statement.setQueryTimeout(1);
            say("too long", state(statement, "SELECT sum(a.range # b.range) FROM range(100000000) a, range(100000) b"));
            say("valid", connection.isValid(30));
        }
    }
}
