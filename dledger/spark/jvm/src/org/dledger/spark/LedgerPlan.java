package org.dledger.spark;

import java.io.IOException;
import java.util.List;
import java.util.Map;
import net.razorvine.pickle.Unpickler;
import org.apache.spark.sql.connector.read.InputPartition;
import org.apache.spark.sql.execution.datasources.v2.python.PythonDataSourceReadInfo;
import org.apache.spark.sql.execution.datasources.v2.python.PythonInputPartition;

/** What Python has planned for one scan: its first partition is a report, the others are for tasks. */
final class LedgerPlan {
    private final PythonDataSourceReadInfo info;
    private final Map<?, ?> report;

    LedgerPlan(PythonDataSourceReadInfo info) {
        this.info = info;
        Object first;
        try {
            first = new Unpickler().loads(info.partitions().apply(0));
        } catch (IOException error) {
            throw new IllegalStateException(error);
        }
        if (!(first instanceof Map<?, ?> fields) || !(fields.get("value") instanceof Map<?, ?> value)) {
            throw new IllegalStateException("Python's package dledger does not fit the jar: take the one that "
                + "python -m dledger.spark.jvm names");
        }
        report = value;
    }

    byte[] function() {
        return info.func();
    }

    /** What the next scans of the data frame read. */
    String pinned() {
        return (String) report.get("pinned");
    }

    /** Rows, about; negative: not known. */
    long rows() {
        return ((Number) report.get("rows")).longValue();
    }

    /** Bytes of the rows in Spark, about. */
    long bytes() {
        return ((Number) report.get("bytes")).longValue();
    }

    /** The one row of an aggregate that Python has computed; null: tasks do that. */
    Object[] answer() {
        if (!(report.get("answer") instanceof List<?> values)) {
            return null;
        }
        return values.stream().map(value -> value == null ? null : ((Number) value).longValue()).toArray();
    }

    InputPartition[] partitions() {
        if (answer() != null) {
            return new InputPartition[] {new LedgerAnswer(answer())};
        }
        InputPartition[] found = new InputPartition[info.partitions().length() - 1];
        for (int number = 0; number < found.length; number++) {
            found[number] = new PythonInputPartition(number, info.partitions().apply(number + 1));
        }
        return found;
    }
}
