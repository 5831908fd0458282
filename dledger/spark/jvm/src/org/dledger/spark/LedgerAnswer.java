package org.dledger.spark;

import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.GenericInternalRow;
import org.apache.spark.sql.connector.read.InputPartition;
import org.apache.spark.sql.connector.read.PartitionReader;
import org.apache.spark.sql.connector.read.PartitionReaderFactory;

/** One row that planning has computed. */
final class LedgerAnswer implements InputPartition {
    private static final long serialVersionUID = 1L;

    private final Object[] row;

    LedgerAnswer(Object[] row) {
        this.row = row;
    }

    /** Makes readers of such rows. */
    static final class Factory implements PartitionReaderFactory {
        private static final long serialVersionUID = 1L;

        @Override
        public PartitionReader<InternalRow> createReader(InputPartition partition) {
            return new PartitionReader<>() {
                private boolean isRead;

                @Override
                public boolean next() {
                    boolean isFirst = !isRead;
                    isRead = true;
                    return isFirst;
                }

                @Override
                public InternalRow get() {
                    return new GenericInternalRow(((LedgerAnswer) partition).row);
                }

                @Override
                public void close() {
                }
            };
        }
    }
}
