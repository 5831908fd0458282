"""
Rows of Spark into a group's log, each once: see docs/spark-reference.md, "Sink".

Tasks hand their rows to the driver, which alone appends. L{dledger.spark.sink.batch_append} has the rules.
"""
