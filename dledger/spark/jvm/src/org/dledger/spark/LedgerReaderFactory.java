package org.dledger.spark;

import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.connector.read.InputPartition;
import org.apache.spark.sql.connector.read.PartitionReader;
import org.apache.spark.sql.connector.read.PartitionReaderFactory;
import org.apache.spark.sql.execution.datasources.v2.python.PythonInputPartition;
import org.apache.spark.sql.execution.datasources.v2.python.PythonPartitionReaderFactory;
import org.apache.spark.sql.execution.datasources.v2.python.UserDefinedPythonDataSource;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.vectorized.ColumnarBatch;
import scala.Option;

/** Makes readers for executors: the Arrow batches of the Python worker, without a row for each record. */
final class LedgerReaderFactory implements PartitionReaderFactory {
    private static final long serialVersionUID = 1L;

    private final UserDefinedPythonDataSource source;
    private final byte[] function;
    private final StructType columns;
    private final Option<String> artifacts;
    private final boolean endsSoon;
    private final PythonPartitionReaderFactory rows;

    /** @param endsSoon whether Python itself stops after a few rows. */
    LedgerReaderFactory(UserDefinedPythonDataSource source, byte[] function, StructType columns,
            Option<String> artifacts, boolean endsSoon, PythonPartitionReaderFactory rows) {
        this.source = source;
        this.function = function;
        this.columns = columns;
        this.artifacts = artifacts;
        this.endsSoon = endsSoon;
        this.rows = rows;
    }

    @Override
    public PartitionReader<InternalRow> createReader(InputPartition partition) {
        return rows.createReader(partition);
    }

    @Override
    public boolean supportColumnarReads(InputPartition partition) {
        return true;
    }

    @Override
    public PartitionReader<ColumnarBatch> createColumnarReader(InputPartition partition) {
        return new LedgerBatchReader(source, function, columns, artifacts, endsSoon,
            (PythonInputPartition) partition);
    }
}
