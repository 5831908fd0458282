package org.dledger.spark;

import java.util.OptionalLong;
import org.apache.spark.sql.connector.read.Batch;
import org.apache.spark.sql.connector.read.Statistics;
import org.apache.spark.sql.connector.read.SupportsReportStatistics;
import org.apache.spark.sql.connector.read.streaming.MicroBatchStream;
import org.apache.spark.sql.execution.datasources.v2.python.PythonScan;
import org.apache.spark.sql.sources.Filter;
import org.apache.spark.sql.types.StructType;

/** Spark's own scan of a Python source, except that batches are columnar and narrowed. A stream is Spark's own. */
final class LedgerScan extends PythonScan implements SupportsReportStatistics {
    private final LedgerTable table;
    private final Pushed pushed;
    private LedgerPlan plan;
    private boolean isStream;

    /** @param plan of this scan; null: it is planned when that is needed. */
    LedgerScan(LedgerTable table, StructType columns, Pushed pushed, LedgerPlan plan) {
        super(table.source(), LedgerRule.NAME, columns, table.options(), new Filter[0]);
        this.table = table;
        this.pushed = pushed;
        this.plan = plan;
    }

    private synchronized LedgerPlan plan() {
        if (plan == null) {
            plan = table.plan(readSchema(), pushed);
        }
        return plan;
    }

    @Override
    public Batch toBatch() {
        return new LedgerBatch(table.python(), readSchema(), pushed.isLimited(), plan());
    }

    @Override
    public MicroBatchStream toMicroBatchStream(String checkpointLocation) {
        isStream = true;
        return super.toMicroBatchStream(checkpointLocation);
    }

    @Override
    public ColumnarSupportMode columnarSupportMode() {
        return isStream || plan().answer() != null ? ColumnarSupportMode.UNSUPPORTED : ColumnarSupportMode.SUPPORTED;
    }

    @Override
    public Statistics estimateStatistics() {
        OptionalLong rows = isStream || plan().rows() < 0 ? OptionalLong.empty() : OptionalLong.of(plan().rows());
        OptionalLong bytes = isStream ? OptionalLong.empty() : OptionalLong.of(plan().bytes());
        return new Statistics() {
            @Override
            public OptionalLong sizeInBytes() {
                return bytes;
            }

            @Override
            public OptionalLong numRows() {
                return rows;
            }
        };
    }

    @Override
    public boolean reflectsFullyPushedDownFilters() {
        return true;
    }

    @Override
    public String description() {
        String more = pushed.toString();
        return "dledger " + readSchema().simpleString() + (more.isEmpty() ? "" : ", " + more);
    }
}
