package org.dledger.spark;

import java.util.Map;
import java.util.TreeMap;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import org.apache.spark.sql.catalyst.analysis.NoSuchNamespaceException;
import org.apache.spark.sql.catalyst.analysis.NoSuchTableException;
import org.apache.spark.sql.connector.catalog.Identifier;
import org.apache.spark.sql.connector.catalog.Table;
import org.apache.spark.sql.connector.catalog.TableCatalog;
import org.apache.spark.sql.connector.catalog.TableChange;
import org.apache.spark.sql.connector.expressions.Transform;
import org.apache.spark.sql.internal.SQLConf;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;
import scala.jdk.javaapi.CollectionConverters;

/**
 * Logs as tables. {@code spark.sql.catalog.CATALOG.TABLE.OPTION} is an option of the source for a table.
 *
 * The settings of the session are the only place of a table: they are read at each use, so SET makes one.
 */
public final class LogCatalog implements TableCatalog {
    /** The last line of what Python says about an option, without its traceback. */
    private static final Pattern WRONG_OPTION = Pattern.compile("OptionError: (.*)");

    private String name;
    private String prefix;

    @Override
    public void initialize(String name, CaseInsensitiveStringMap options) {
        this.name = name;
        this.prefix = "spark.sql.catalog." + name + ".";
    }

    @Override
    public String name() {
        return name;
    }

    /** The options of each table, whose name is all before the last dot; case does not matter. */
    private Map<String, Map<String, String>> tables() {
        Map<String, Map<String, String>> found = new TreeMap<>(String.CASE_INSENSITIVE_ORDER);
        CollectionConverters.asJava(SQLConf.get().getAllConfs()).forEach((setting, value) -> {
            if (setting.startsWith(prefix)) {
                int dot = setting.lastIndexOf('.');
                if (dot <= prefix.length() || dot == setting.length() - 1) {
                    throw new IllegalArgumentException(
                        setting + " is no option of a table: " + prefix + "TABLE.OPTION is allowed");
                }
                found.computeIfAbsent(setting.substring(prefix.length(), dot), table -> new TreeMap<>())
                    .put(setting.substring(dot + 1), value);
            }
        });
        return found;
    }

    @Override
    public Identifier[] listTables(String[] namespace) throws NoSuchNamespaceException {
        if (namespace.length > 0) {
            throw new NoSuchNamespaceException(namespace);
        }
        return tables().keySet().stream().map(table -> Identifier.of(namespace, table)).toArray(Identifier[]::new);
    }

    @Override
    public Table loadTable(Identifier table) throws NoSuchTableException {
        Map<String, String> options = table.namespace().length > 0 ? null : tables().get(table.name());
        if (options == null) {
            throw new NoSuchTableException(table);
        }
        String full = name + "." + table.name();
        try {
            return LogTable.of(full, new CaseInsensitiveStringMap(options));
        } catch (Exception error) {
            Matcher wrong = WRONG_OPTION.matcher(String.valueOf(error.getMessage()));
            if (wrong.find()) {
                throw new IllegalArgumentException("table " + full + ": " + wrong.group(1), error);
            }
            throw error;
        }
    }

    private UnsupportedOperationException refusal(Identifier table) {
        return new UnsupportedOperationException("the tables of catalog " + name + " are settings of the session: SET "
            + prefix + table.name() + ".path=... or .bootstrap=... makes table " + table.name()
            + ", RESET with the same names removes it");
    }

    @Override
    public Table createTable(Identifier table, StructType schema, Transform[] partitions,
            Map<String, String> properties) {
        throw refusal(table);
    }

    @Override
    public Table alterTable(Identifier table, TableChange... changes) {
        throw refusal(table);
    }

    @Override
    public boolean dropTable(Identifier table) {
        throw refusal(table);
    }

    @Override
    public void renameTable(Identifier from, Identifier to) {
        throw refusal(from);
    }
}
