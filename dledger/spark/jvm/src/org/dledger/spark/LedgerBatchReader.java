package org.dledger.spark;

import org.apache.spark.TaskContext;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.GenericInternalRow;
import org.apache.spark.sql.connector.metric.CustomTaskMetric;
import org.apache.spark.sql.connector.read.PartitionReader;
import org.apache.spark.sql.execution.datasources.v2.python.PythonCustomMetric$;
import org.apache.spark.sql.execution.datasources.v2.python.PythonInputPartition;
import org.apache.spark.sql.execution.datasources.v2.python.UserDefinedPythonDataSource;
import org.apache.spark.sql.execution.metric.SQLMetric;
import org.apache.spark.sql.execution.python.ArrowPythonRunner;
import org.apache.spark.sql.execution.python.MapInBatchEvaluatorFactory;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.vectorized.ArrowColumnVector;
import org.apache.spark.sql.vectorized.ColumnVector;
import org.apache.spark.sql.vectorized.ColumnarBatch;
import scala.Option;
import scala.collection.Iterator;
import scala.collection.JavaConverters;
import scala.collection.immutable.Map;

/** Runs the read function in a Python worker and hands on its batches as they are. */
final class LedgerBatchReader implements PartitionReader<ColumnarBatch> {
    private final UserDefinedPythonDataSource source;
    private final int width;
    private final Map<String, SQLMetric> metrics = PythonCustomMetric$.MODULE$.pythonMetrics();
    private final Iterator<ColumnarBatch> batches;

    LedgerBatchReader(UserDefinedPythonDataSource source, byte[] function, StructType columns,
            Option<String> artifacts, boolean endsSoon, PythonInputPartition partition) {
        this.source = source;
        this.width = columns.length();
        // Spark's own factory knows how a Python worker is called; its evaluator, which makes rows, is not used.
        MapInBatchEvaluatorFactory call = source.createMapInBatchEvaluatorFactory(
            function, "read_from_data_source", UserDefinedPythonDataSource.readInputSchema(), columns, metrics,
            artifacts, Option.empty());
        ArrowPythonRunner runner = new ArrowPythonRunner(
            call.org$apache$spark$sql$execution$python$MapInBatchEvaluatorFactory$$chainedFunc,
            call.org$apache$spark$sql$execution$python$MapInBatchEvaluatorFactory$$pythonEvalType,
            new int[][] {{0}},
            new StructType().add("struct", UserDefinedPythonDataSource.readInputSchema()),
            call.org$apache$spark$sql$execution$python$MapInBatchEvaluatorFactory$$sessionLocalTimeZone,
            call.org$apache$spark$sql$execution$python$MapInBatchEvaluatorFactory$$largeVarTypes,
            call.org$apache$spark$sql$execution$python$MapInBatchEvaluatorFactory$$pythonRunnerConf,
            metrics,
            call.org$apache$spark$sql$execution$python$MapInBatchEvaluatorFactory$$jobArtifactUUID,
            call.org$apache$spark$sql$execution$python$MapInBatchEvaluatorFactory$$sessionUUID);
        InternalRow input = new GenericInternalRow(
            new Object[] {new GenericInternalRow(new Object[] {partition.pickedPartition()})});
        TaskContext context = TaskContext.get();
        batches = runner.compute(one(one(input)), context.partitionId(), context);
        if (endsSoon) {
            context.addTaskCompletionListener(this::drain);
        }
    }

    private static <T> Iterator<T> one(T value) {
        return JavaConverters.asScalaIterator(java.util.List.of(value).iterator());
    }

    @Override
    public boolean next() {
        return batches.hasNext();
    }

    @Override
    public ColumnarBatch get() {
        ColumnarBatch wrapped = batches.next();
        // The worker sends each batch as one column, a struct of the real ones.
        ArrowColumnVector struct = (ArrowColumnVector) wrapped.column(0);
        ColumnVector[] vectors = new ColumnVector[width];
        for (int number = 0; number < width; number++) {
            vectors[number] = struct.getChild(number);
        }
        return new ColumnarBatch(vectors, wrapped.numRows());
    }

    @Override
    public CustomTaskMetric[] currentMetricsValues() {
        java.util.Map<String, Object> values = new java.util.HashMap<>();
        JavaConverters.mapAsJavaMap(metrics).forEach((name, metric) -> values.put(name, metric.value()));
        return source.createPythonTaskMetrics(scala.collection.immutable.Map.from(JavaConverters.mapAsScalaMap(values)));
    }

    /**
     * Spark kills a worker whose answer was not read to its end, and starts another one for the next task. This
     * runs before: the listener that came last is the first one.
     */
    private void drain(TaskContext context) {
        while (!context.isInterrupted() && !context.isFailed() && batches.hasNext()) {
            batches.next();
        }
    }

    /** The worker ends with the task. */
    @Override
    public void close() {
    }
}
