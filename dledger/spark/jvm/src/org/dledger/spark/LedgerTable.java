package org.dledger.spark;

import java.util.HashMap;
import java.util.Map;
import org.apache.spark.sql.connector.read.ScanBuilder;
import org.apache.spark.sql.execution.datasources.v2.python.PythonDataSourceV2;
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
    /** What all scans read, as Python has planned it first; null: there was none. */
    private String pinned;

    LedgerTable(PythonDataSourceV2 source, StructType schema, CaseInsensitiveStringMap options) {
        super(source, LedgerRule.NAME, schema);
        this.source = source;
        this.options = options;
    }

    /** Spark may keep this table for a query whose options are others, as REFRESH TABLE does. */
    @Override
    public ScanBuilder newScanBuilder(CaseInsensitiveStringMap given) {
        return new LedgerScanBuilder(with(given));
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

    PythonDataSourceV2 source() {
        return source;
    }

    /**
     * Ask Python for a scan of some columns, as if the user had named them with {@code .schema(...)}. The first one
     * pins what the others read.
     */
    synchronized LedgerPlan plan(StructType columns, Pushed pushed) {
        LedgerPlan plan = new LedgerPlan(python().createReadInfoInPython(
            source.getOrCreateDataSourceInPython(LedgerRule.NAME, options, Option.apply(schema())),
            pushed.on(columns, pinned), false));
        pinned = plan.pinned();
        return plan;
    }
}
