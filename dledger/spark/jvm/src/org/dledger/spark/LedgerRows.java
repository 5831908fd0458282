package org.dledger.spark;

import org.apache.spark.sql.catalyst.rules.Rule;
import org.apache.spark.sql.execution.ColumnarRule;
import org.apache.spark.sql.execution.ColumnarToRowExec;
import org.apache.spark.sql.execution.SparkPlan;
import org.apache.spark.sql.execution.datasources.v2.BatchScanExec;
import scala.runtime.AbstractPartialFunction;

/**
 * Makes rows of the batches of a scan directly above it.
 *
 * A batch of {@link LedgerBatchReader} is valid until the next one is read: its vectors are those of the stream from
 * the Python worker. Spark makes rows of it above the scan anyway, except for Python UDFs (SPARK-56350), which keep
 * batches until the answer of the UDF has come, and then read vectors that have the next batch, or none.
 */
final class LedgerRows extends ColumnarRule {
    @Override
    public Rule<SparkPlan> preColumnarTransitions() {
        return new Rule<SparkPlan>() {
            @Override
            public SparkPlan apply(SparkPlan plan) {
                return (SparkPlan) plan.transformUp(new AbstractPartialFunction<SparkPlan, SparkPlan>() {
                    @Override
                    public boolean isDefinedAt(SparkPlan node) {
                        return node instanceof BatchScanExec read && read.scan() instanceof LedgerScan
                            && read.supportsColumnar();
                    }

                    @Override
                    public SparkPlan apply(SparkPlan node) {
                        return new ColumnarToRowExec(node);
                    }
                });
            }
        };
    }
}
