package org.dledger.spark;

import java.lang.reflect.Field;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.rules.Rule;
import org.apache.spark.sql.execution.datasources.v2.DataSourceV2Relation;
import org.apache.spark.sql.execution.datasources.v2.python.PythonDataSourceV2;
import org.apache.spark.sql.execution.datasources.v2.python.PythonTable;
import org.apache.spark.sql.internal.SQLConf;
import scala.runtime.AbstractPartialFunction;

/**
 * Replaces Spark's table of a Python source named {@code dledger} by {@link LedgerTable}, which reads the same rows.
 *
 * Spark finds the Python source itself, registered or installed; this rule does not change how.
 */
public final class LedgerRule extends Rule<LogicalPlan> {
    /** Short name of the format. */
    static final String NAME = "dledger";
    /** Setting of a session: false leaves the scans to Spark. */
    private static final String SETTING = "spark.dledger.columnar";

    @Override
    public LogicalPlan apply(LogicalPlan plan) {
        if (!SQLConf.get().getConfString(SETTING, "true").equals("true")) {
            return plan;
        }
        return plan.resolveOperators(new AbstractPartialFunction<LogicalPlan, LogicalPlan>() {
            @Override
            public boolean isDefinedAt(LogicalPlan node) {
                return node instanceof DataSourceV2Relation relation && (relation.table() instanceof LogTable
                    || relation.table().getClass() == PythonTable.class
                    && relation.table().name().equalsIgnoreCase(NAME));
            }

            @Override
            public LogicalPlan apply(LogicalPlan node) {
                DataSourceV2Relation relation = (DataSourceV2Relation) node;
                LedgerTable table = relation.table() instanceof LogTable log ? log.columnar().with(relation.options())
                    : new LedgerTable(sourceOf(relation.table()), relation.table().schema(), relation.options());
                return relation.copy(table, relation.output(), relation.catalog(), relation.identifier(),
                    relation.options(), relation.timeTravelSpec());
            }
        });
    }

    /** The table's own source, whose Python object is made already; else a new one, which makes another. */
    private static PythonDataSourceV2 sourceOf(Object table) {
        try {
            Field field = PythonTable.class.getDeclaredField("ds");
            field.setAccessible(true);
            return (PythonDataSourceV2) field.get(table);
        } catch (ReflectiveOperationException | RuntimeException error) {
            return newSource();
        }
    }

    /** The Python source of the session, which makes a new Python object for the options of its first use. */
    static PythonDataSourceV2 newSource() {
        PythonDataSourceV2 source = new PythonDataSourceV2();
        source.setShortName(NAME);
        return source;
    }
}
