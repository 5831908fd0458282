package org.dledger.spark;

import org.apache.spark.sql.connector.read.Scan;
import org.apache.spark.sql.connector.read.SupportsPushDownRequiredColumns;
import org.apache.spark.sql.execution.datasources.v2.python.PythonDataSourceV2;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/** Takes from Spark the columns that a query uses. */
final class LedgerScanBuilder implements SupportsPushDownRequiredColumns {
    private final LedgerTable table;
    private final PythonDataSourceV2 source;
    private final CaseInsensitiveStringMap options;
    private StructType columns;

    LedgerScanBuilder(LedgerTable table, PythonDataSourceV2 source, CaseInsensitiveStringMap options) {
        this.table = table;
        this.source = source;
        this.options = options;
        this.columns = table.schema();
    }

    @Override
    public void pruneColumns(StructType required) {
        columns = required.isEmpty() ? new StructType().add(cheapest()) : required;
    }

    /** A query such as count(*) uses no column, but the rows must be counted: a narrow column shows them. */
    private StructField cheapest() {
        for (StructField field : table.schema().fields()) {
            if (field.dataType().equals(DataTypes.IntegerType)) {
                return field;
            }
        }
        return table.schema().fields()[0];
    }

    @Override
    public Scan build() {
        return new LedgerScan(table, source, columns, options);
    }
}
