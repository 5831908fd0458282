package org.dledger.spark;

import org.apache.spark.sql.connector.read.Batch;
import org.apache.spark.sql.connector.read.streaming.MicroBatchStream;
import org.apache.spark.sql.execution.datasources.v2.python.PythonDataSourceV2;
import org.apache.spark.sql.execution.datasources.v2.python.PythonScan;
import org.apache.spark.sql.sources.Filter;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/** Spark's own scan of a Python source, except that batches are columnar. A stream is Spark's own. */
final class LedgerScan extends PythonScan {
    private final LedgerTable table;
    private final CaseInsensitiveStringMap options;
    private boolean isStream;

    LedgerScan(LedgerTable table, PythonDataSourceV2 source, StructType columns, CaseInsensitiveStringMap options) {
        super(source, LedgerRule.NAME, columns, options, new Filter[0]);
        this.table = table;
        this.options = options;
    }

    @Override
    public Batch toBatch() {
        return new LedgerBatch(table, readSchema(), options);
    }

    @Override
    public MicroBatchStream toMicroBatchStream(String checkpointLocation) {
        isStream = true;
        return super.toMicroBatchStream(checkpointLocation);
    }

    @Override
    public ColumnarSupportMode columnarSupportMode() {
        return isStream ? ColumnarSupportMode.UNSUPPORTED : ColumnarSupportMode.SUPPORTED;
    }

    @Override
    public String description() {
        return "dledger " + readSchema().simpleString();
    }
}
