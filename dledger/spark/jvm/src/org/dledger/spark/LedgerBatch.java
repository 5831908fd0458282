package org.dledger.spark;

import org.apache.spark.JobArtifactSet;
import org.apache.spark.JobArtifactState;
import org.apache.spark.sql.connector.read.Batch;
import org.apache.spark.sql.connector.read.InputPartition;
import org.apache.spark.sql.connector.read.PartitionReaderFactory;
import org.apache.spark.sql.execution.datasources.v2.python.PythonDataSourceReadInfo;
import org.apache.spark.sql.execution.datasources.v2.python.PythonPartitionReaderFactory;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;
import scala.Option;

/** One scan of some columns. Python plans it and reads it. */
final class LedgerBatch implements Batch {
    private final LedgerTable table;
    private final StructType columns;
    private final CaseInsensitiveStringMap options;
    private final Option<String> artifacts = JobArtifactSet.getCurrentJobArtifactState().map(JobArtifactState::uuid);
    private PythonDataSourceReadInfo planned;

    LedgerBatch(LedgerTable table, StructType columns, CaseInsensitiveStringMap options) {
        this.table = table;
        this.columns = columns;
        this.options = options;
    }

    private synchronized PythonDataSourceReadInfo planned() {
        if (planned == null) {
            planned = table.plan(columns, options);
        }
        return planned;
    }

    @Override
    public InputPartition[] planInputPartitions() {
        return table.pinned(planned());
    }

    @Override
    public PartitionReaderFactory createReaderFactory() {
        byte[] function = planned().func();
        // The last argument is for logs that workers send back, which Spark leaves out, too, unless told so.
        return new LedgerReaderFactory(table.python(), function, columns, artifacts,
            new PythonPartitionReaderFactory(table.python(), function, columns, artifacts, Option.empty()));
    }
}
