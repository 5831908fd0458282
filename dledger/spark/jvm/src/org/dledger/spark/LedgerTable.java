package org.dledger.spark;

import org.apache.spark.sql.connector.read.InputPartition;
import org.apache.spark.sql.connector.read.ScanBuilder;
import org.apache.spark.sql.execution.datasources.v2.python.PythonDataSourceReadInfo;
import org.apache.spark.sql.execution.datasources.v2.python.PythonDataSourceV2;
import org.apache.spark.sql.execution.datasources.v2.python.PythonInputPartition;
import org.apache.spark.sql.execution.datasources.v2.python.PythonTable;
import org.apache.spark.sql.execution.datasources.v2.python.UserDefinedPythonDataSource;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;
import scala.Option;

/**
 * A loaded data frame's table. All its scans read the range that the first one planned, whatever their columns.
 */
final class LedgerTable extends PythonTable {
    private final PythonDataSourceV2 source;
    private InputPartition[] partitions;

    LedgerTable(PythonDataSourceV2 source, StructType schema) {
        super(source, LedgerRule.NAME, schema);
        this.source = source;
    }

    @Override
    public ScanBuilder newScanBuilder(CaseInsensitiveStringMap options) {
        return new LedgerScanBuilder(this, source, options);
    }

    UserDefinedPythonDataSource python() {
        return source.source();
    }

    /** Ask Python for a scan of some columns, as if the user had named them with {@code .schema(...)}. */
    PythonDataSourceReadInfo plan(StructType columns, CaseInsensitiveStringMap options) {
        return python().createReadInfoInPython(
            source.getOrCreateDataSourceInPython(LedgerRule.NAME, options, Option.apply(schema())), columns, false);
    }

    /** The partitions that were planned first, which are those of {@code planned} if there were none before. */
    synchronized InputPartition[] pinned(PythonDataSourceReadInfo planned) {
        if (partitions == null) {
            InputPartition[] first = new InputPartition[planned.partitions().length()];
            for (int number = 0; number < first.length; number++) {
                first[number] = new PythonInputPartition(number, planned.partitions().apply(number));
            }
            partitions = first;
        }
        return partitions.clone();
    }
}
