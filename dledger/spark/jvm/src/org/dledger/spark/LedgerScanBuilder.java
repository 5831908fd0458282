package org.dledger.spark;

import java.util.ArrayList;
import java.util.List;
import org.apache.spark.sql.connector.expressions.Expression;
import org.apache.spark.sql.connector.expressions.NamedReference;
import org.apache.spark.sql.connector.expressions.aggregate.AggregateFunc;
import org.apache.spark.sql.connector.expressions.aggregate.Aggregation;
import org.apache.spark.sql.connector.expressions.aggregate.Count;
import org.apache.spark.sql.connector.expressions.aggregate.CountStar;
import org.apache.spark.sql.connector.expressions.aggregate.Max;
import org.apache.spark.sql.connector.expressions.aggregate.Min;
import org.apache.spark.sql.connector.expressions.filter.Predicate;
import org.apache.spark.sql.connector.read.Scan;
import org.apache.spark.sql.connector.read.SupportsPushDownAggregates;
import org.apache.spark.sql.connector.read.SupportsPushDownLimit;
import org.apache.spark.sql.connector.read.SupportsPushDownRequiredColumns;
import org.apache.spark.sql.connector.read.SupportsPushDownV2Filters;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;

/** Takes from Spark what a query needs of a log: columns, ranges of rows, how many of them, or only their number. */
final class LedgerScanBuilder implements SupportsPushDownRequiredColumns, SupportsPushDownV2Filters,
        SupportsPushDownLimit, SupportsPushDownAggregates {
    private final LedgerTable table;
    private final boolean isLedger;
    private final Pushed pushed;
    private final List<Predicate> taken = new ArrayList<>();
    private StructType columns;
    private LedgerPlan plan;

    LedgerScanBuilder(LedgerTable table) {
        this.table = table;
        this.isLedger = !"rocketmq".equalsIgnoreCase(table.options().getOrDefault("format", "dledger"));
        this.pushed = new Pushed(isLedger, table.schema());
        this.columns = table.schema();
    }

    @Override
    public Predicate[] pushPredicates(Predicate[] predicates) {
        List<Predicate> left = new ArrayList<>();
        for (Predicate predicate : predicates) {
            Pushed.Taken how = pushed.take(predicate);
            if (how != Pushed.Taken.NOT) {
                taken.add(predicate);
            }
            if (how != Pushed.Taken.EXACTLY) {
                left.add(predicate);
            }
        }
        return left.toArray(Predicate[]::new);
    }

    @Override
    public Predicate[] pushedPredicates() {
        return taken.toArray(Predicate[]::new);
    }

    @Override
    public boolean pushLimit(int limit) {
        if (pushed.isAggregated() || limit < 1) {
            return false;
        }
        pushed.limit(limit);
        return true;
    }

    /** Each task stops at the limit by itself. */
    @Override
    public boolean isPartiallyPushed() {
        return true;
    }

    /** Planning counts small logs itself; the tasks of large ones give a row each. */
    @Override
    public boolean supportCompletePushDown(Aggregation aggregation) {
        return plan(aggregation) != null && plan.answer() != null;
    }

    @Override
    public boolean pushAggregation(Aggregation aggregation) {
        return plan(aggregation) != null;
    }

    /** The plan of an aggregation; null: it is not one of the index and the term alone. */
    private LedgerPlan plan(Aggregation aggregation) {
        AggregateFunc[] functions = aggregation.aggregateExpressions();
        if (plan != null || !isLedger || functions.length == 0 || aggregation.groupByExpressions().length > 0) {
            return plan;
        }
        List<String> names = new ArrayList<>();
        StructType found = new StructType();
        for (AggregateFunc function : functions) {
            String name = nameOf(function);
            if (name == null) {
                return null;
            }
            names.add(name);
            found = found.add(new StructField(name, DataTypes.LongType, true, columns.fields()[0].metadata()));
        }
        pushed.aggregates(names);
        columns = found;
        plan = table.plan(columns, pushed);
        return plan;
    }

    private static String nameOf(AggregateFunc function) {
        if (function instanceof CountStar) {
            return "count(*)";
        }
        if (function instanceof Count count && !count.isDistinct() && columnOf(count.column()) != null) {
            return "count(" + columnOf(count.column()) + ")";
        }
        if (function instanceof Min min && columnOf(min.column()) != null) {
            return "min(" + columnOf(min.column()) + ")";
        }
        return function instanceof Max max && columnOf(max.column()) != null ? "max(" + columnOf(max.column()) + ")"
            : null;
    }

    private static String columnOf(Expression expression) {
        String name = expression instanceof NamedReference column ? column.fieldNames()[0].toLowerCase() : "";
        return name.equals("index") || name.equals("term") ? name : null;
    }

    /** Spark asks this of a scan of rows only, also after an aggregation that it has given up. */
    @Override
    public void pruneColumns(StructType required) {
        pushed.aggregates(List.of());
        plan = null;
        columns = required.isEmpty() ? new StructType().add(cheapest()) : required;
    }

    /** A query such as count(*) uses no column, but the rows must be counted: a narrow column shows them. */
    private StructField cheapest() {
        for (StructField field : table.schema().fields()) {
            if (field.dataType().equals(DataTypes.IntegerType)) {
                return field;
            }
        }
        return table.schema().fields()[0];
    }

    @Override
    public Scan build() {
        return new LedgerScan(table, columns, pushed, plan);
    }
}
