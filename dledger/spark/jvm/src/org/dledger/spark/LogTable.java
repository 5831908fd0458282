package org.dledger.spark;

import java.util.Set;
import org.apache.spark.sql.connector.catalog.TableCapability;
import org.apache.spark.sql.connector.read.ScanBuilder;
import org.apache.spark.sql.execution.datasources.v2.python.PythonDataSourceV2;
import org.apache.spark.sql.execution.datasources.v2.python.PythonTable;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/**
 * A log by name: Spark's own table of the Python source, with the options that are configured for the name.
 *
 * {@link LedgerRule} replaces it by its {@link LedgerTable} in batches, where the session has the extension.
 */
final class LogTable extends PythonTable {
    private final String name;
    private final LedgerTable columnar;

    private LogTable(String name, LedgerTable columnar) {
        super(LedgerRule.newSource(), LedgerRule.NAME, columnar.schema());
        this.name = name;
        this.columnar = columnar;
    }

    /** Asks Python for the columns; Python checks the options. */
    static LogTable of(String name, CaseInsensitiveStringMap options) {
        PythonDataSourceV2 source = LedgerRule.newSource();
        StructType schema = source.inferSchema(options);
        return new LogTable(name, new LedgerTable(source, schema, options));
    }

    /** One for all places of a query: they read the same range. */
    LedgerTable columnar() {
        return columnar;
    }

    @Override
    public String name() {
        return name;
    }

    @Override
    public Set<TableCapability> capabilities() {
        return Set.of(TableCapability.BATCH_READ, TableCapability.MICRO_BATCH_READ);
    }

    @Override
    public ScanBuilder newScanBuilder(CaseInsensitiveStringMap given) {
        return new PythonTable(LedgerRule.newSource(), LedgerRule.NAME, schema())
            .newScanBuilder(columnar.with(given).options());
    }
}
