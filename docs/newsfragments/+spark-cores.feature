`python -m benchmarks.spark_cores` measures what a second core brings to a reader of the log, with and without Spark, and the memory of a worker.
