package org.dledger.spark;

import org.apache.spark.JobArtifactSet;
import org.apache.spark.JobArtifactState;
import org.apache.spark.sql.connector.read.Batch;
import org.apache.spark.sql.connector.read.InputPartition;
import org.apache.spark.sql.connector.read.PartitionReaderFactory;
import org.apache.spark.sql.execution.datasources.v2.python.PythonPartitionReaderFactory;
import org.apache.spark.sql.execution.datasources.v2.python.UserDefinedPythonDataSource;
import org.apache.spark.sql.types.StructType;
import scala.Option;

/** One scan of some columns. Python has planned it and reads it. */
final class LedgerBatch implements Batch {
    private final UserDefinedPythonDataSource python;
    private final StructType columns;
    private final boolean endsSoon;
    private final LedgerPlan plan;
    private final Option<String> artifacts = JobArtifactSet.getCurrentJobArtifactState().map(JobArtifactState::uuid);

    LedgerBatch(UserDefinedPythonDataSource python, StructType columns, boolean endsSoon, LedgerPlan plan) {
        this.python = python;
        this.columns = columns;
        this.endsSoon = endsSoon;
        this.plan = plan;
    }

    @Override
    public InputPartition[] planInputPartitions() {
        return plan.partitions();
    }

    @Override
    public PartitionReaderFactory createReaderFactory() {
        if (plan.answer() != null) {
            return new LedgerAnswer.Factory();
        }
        byte[] function = plan.function();
        // The last argument is for logs that workers send back, which Spark leaves out, too, unless told so.
        return new LedgerReaderFactory(python, function, columns, artifacts, endsSoon,
            new PythonPartitionReaderFactory(python, function, columns, artifacts, Option.empty()));
    }
}
