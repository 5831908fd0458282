package org.dledger.spark;

import java.time.Instant;
import java.time.temporal.ChronoUnit;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeSet;
import org.apache.spark.sql.connector.expressions.Expression;
import org.apache.spark.sql.connector.expressions.Literal;
import org.apache.spark.sql.connector.expressions.NamedReference;
import org.apache.spark.sql.connector.expressions.filter.Predicate;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.MetadataBuilder;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;

/**
 * What Spark asks of one scan besides its columns. Python gets it as metadata of the first column.
 *
 * Rows with a null are never dropped wrongly: for a column that may be null only predicates are taken that are not
 * true for null.
 */
final class Pushed {
    /** More ranges than these are taken as one, and Spark filters again. */
    private static final int RANGES = 64;
    /** Of the metadata: what dledger/spark/scans/pushed.py reads. */
    private static final String KEY = "dledger";

    private final boolean isLedger;
    private final StructType schema;
    private final Map<String, Ranges> ranges = new LinkedHashMap<>();
    private TreeSet<String> topics;
    private int limit;
    private List<String> aggregates = List.of();

    /** @param isLedger whether the rows are entries, whose index and term are never null. */
    Pushed(boolean isLedger, StructType schema) {
        this.isLedger = isLedger;
        this.schema = schema;
    }

    /** Whether Python may leave rows out by this predicate; {@code exact}: it leaves out all that do not fit. */
    enum Taken { NOT, PARTLY, EXACTLY }

    Taken take(Predicate predicate) {
        TreeSet<String> named = topicsOf(predicate);
        if (named != null) {
            if (topics == null) {
                topics = named;
            } else {
                topics.retainAll(named);
            }
            return Taken.PARTLY;
        }
        String column = columnOf(predicate);
        Ranges found = column == null ? null : rangesOf(predicate);
        if (found == null) {
            return Taken.NOT;
        }
        Ranges before = ranges.getOrDefault(column, Ranges.ALL);
        Ranges all = found.and(before);
        boolean isWhole = all.count() <= RANGES;
        // Spark does not compare again what was taken exactly before.
        ranges.put(column, isWhole ? all : found.hull().and(before));
        return isWhole && !isNullable(column) ? Taken.EXACTLY : Taken.PARTLY;
    }

    void limit(int rows) {
        limit = rows;
    }

    boolean isLimited() {
        return limit > 0;
    }

    void aggregates(List<String> names) {
        aggregates = names;
    }

    boolean isAggregated() {
        return !aggregates.isEmpty();
    }

    private boolean isNullable(String column) {
        return !isLedger || !column.equals("index") && !column.equals("term");
    }

    /** The one column of a predicate, if its ranges mean something to Python; else null. */
    private String columnOf(Predicate predicate) {
        NamedReference[] references = predicate.references();
        String found = null;
        for (NamedReference reference : references) {
            String name = reference.fieldNames().length == 1 ? reference.fieldNames()[0].toLowerCase() : "";
            if (found != null && !found.equals(name)) {
                return null;
            }
            found = name;
        }
        List<String> known = isLedger ? List.of("index", "term", "time")
            : List.of("index", "term", "storetimestamp", "physicaloffset");
        return found != null && known.contains(found) ? found : null;
    }

    /** The values, without null, for which a predicate of one column is true; null: not understood. */
    private Ranges rangesOf(Expression expression) {
        if (!(expression instanceof Predicate predicate)) {
            return null;
        }
        Expression[] children = predicate.children();
        switch (predicate.name()) {
            case "AND":
            case "OR":
                Ranges left = rangesOf(children[0]);
                Ranges right = rangesOf(children[1]);
                return left == null || right == null ? null
                    : predicate.name().equals("AND") ? left.and(right) : left.or(right);
            case "NOT":
                Ranges inner = rangesOf(children[0]);
                return inner == null ? null : inner.not();
            case "IN":
                long[] values = new long[children.length - 1];
                for (int at = 1; at < children.length; at++) {
                    Long value = valueOf(children[at], children[0]);
                    if (value == null) {
                        return null;
                    }
                    values[at - 1] = value;
                }
                return Ranges.values(values);
            case "IS_NULL":
            case "IS_NOT_NULL":
                return !(children[0] instanceof NamedReference) || isNullable(columnOf(predicate)) ? null
                    : predicate.name().equals("IS_NULL") ? Ranges.NONE : Ranges.ALL;
            default:
                return children.length == 2 ? compared(predicate.name(), children[0], children[1]) : null;
        }
    }

    /** Spark turns comparisons so that the column is on the left. */
    private Ranges compared(String name, Expression left, Expression right) {
        Long value = valueOf(right, left);
        if (value == null) {
            return null;
        }
        switch (name) {
            case "=":
                return Ranges.of(value, value);
            case "<=>":
                return isNullable(((NamedReference) left).fieldNames()[0].toLowerCase()) ? null
                    : Ranges.of(value, value);
            case "<>":
                return Ranges.of(value, value).not();
            case "<":
                return Ranges.before(value);
            case "<=":
                return Ranges.upTo(value);
            case ">":
                return Ranges.after(value);
            case ">=":
                return Ranges.from(value);
            default:
                return null;
        }
    }

    /** The value of a literal of a column's own type; null: one of the two is something else. */
    private Long valueOf(Expression literal, Expression column) {
        return literal instanceof Literal<?> one && column instanceof NamedReference reference
            && one.value() instanceof Long value && one.dataType().equals(typeOf(reference)) ? value : null;
    }

    private DataType typeOf(NamedReference reference) {
        for (StructField field : schema.fields()) {
            if (field.name().equals(reference.fieldNames()[0])) {
                return field.dataType();
            }
        }
        return null;
    }

    /** The topics that a predicate of RocketMQ's messages names; null: it is another one. */
    private TreeSet<String> topicsOf(Predicate predicate) {
        Expression[] children = predicate.children();
        if (isLedger || !predicate.name().equals("=") && !predicate.name().equals("IN") || children.length > RANGES
                || !(children[0] instanceof NamedReference reference) || reference.fieldNames().length != 1
                || !reference.fieldNames()[0].equalsIgnoreCase("topic")) {
            return null;
        }
        TreeSet<String> found = new TreeSet<>();
        for (int at = 1; at < children.length; at++) {
            if (!(children[at] instanceof Literal<?> literal) || literal.value() == null
                    || !literal.dataType().equals(DataTypes.StringType)) {
                return null;
            }
            found.add(literal.value().toString());
        }
        return found;
    }

    /** The columns of a scan with all of this for Python. @param pinned of the first scan; null: this is it. */
    StructType on(StructType columns, String pinned) {
        MetadataBuilder all = new MetadataBuilder();
        ranges.forEach((column, some) -> all.putLongArray(column, some.flat()));
        if (topics != null) {
            all.putStringArray("topic", topics.toArray(String[]::new));
        }
        all.putLong("limit", limit);
        all.putStringArray("aggregates", aggregates.toArray(String[]::new));
        all.putString("schema", schema.json());
        if (pinned != null) {
            all.putString("pinned", pinned);
        }
        StructField[] fields = columns.fields().clone();
        fields[0] = new StructField(fields[0].name(), fields[0].dataType(), fields[0].nullable(),
            new MetadataBuilder().withMetadata(fields[0].metadata()).putMetadata(KEY, all.build()).build());
        return new StructType(fields);
    }

    /** For EXPLAIN. */
    @Override
    public String toString() {
        List<String> found = new ArrayList<>();
        ranges.forEach((column, some) -> found.add(some.show(column, value -> column.contains("time")
            ? Instant.EPOCH.plus(value, ChronoUnit.MICROS).toString() : Long.toString(value))));
        if (topics != null) {
            found.add("topic in " + topics);
        }
        if (limit > 0) {
            found.add("limit " + limit);
        }
        return String.join(", ", found);
    }
}
