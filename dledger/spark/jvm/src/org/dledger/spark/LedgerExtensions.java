package org.dledger.spark;

import org.apache.spark.sql.SparkSession;
import org.apache.spark.sql.SparkSessionExtensions;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.rules.Rule;
import org.apache.spark.sql.execution.ColumnarRule;
import scala.Function1;
import scala.runtime.AbstractFunction1;
import scala.runtime.BoxedUnit;

/** The value for {@code spark.sql.extensions}: lets scans of the format {@code dledger} be pruned and columnar. */
public final class LedgerExtensions extends AbstractFunction1<SparkSessionExtensions, BoxedUnit> {
    @Override
    public BoxedUnit apply(SparkSessionExtensions extensions) {
        Function1<SparkSession, Rule<LogicalPlan>> rule = session -> new LedgerRule();
        extensions.injectResolutionRule(rule);
        Function1<SparkSession, ColumnarRule> rows = session -> new LedgerRows();
        extensions.injectColumnar(rows);
        return BoxedUnit.UNIT;
    }
}
