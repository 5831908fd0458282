package org.dledger.spark;

import java.util.HashMap;
import java.util.Map;
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
    private final CaseInsensitiveStringMap options;
    private InputPartition[] partitions;

    LedgerTable(PythonDataSourceV2 source, StructType schema, CaseInsensitiveStringMap options) {
        super(source, LedgerRule.NAME, schema);
        this.source = source;
        this.options = options;
    }

    /** Spark may keep this table for a query whose options are others, as REFRESH TABLE does. */
    @Override
    public ScanBuilder newScanBuilder(CaseInsensitiveStringMap given) {
        LedgerTable table = with(given);
        return new LedgerScanBuilder(table, table.source, table.options);
    }

    CaseInsensitiveStringMap options() {
        return options;
    }

    /** This table, or one that has these options, too: a source keeps the options of its first use. */
    LedgerTable with(CaseInsensitiveStringMap given) {
        if (options.entrySet().containsAll(given.entrySet())) {
            return this;
        }
        Map<String, String> both = new HashMap<>(options);
        both.putAll(given);
        return new LedgerTable(LedgerRule.newSource(), schema(), new CaseInsensitiveStringMap(both));
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
