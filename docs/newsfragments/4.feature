`dledger export` writes committed entries into Parquet files or lines of JSON, each exactly once over interruptions and restarts; `twistd dledger-export` does so beside a member, segment by segment.
`make demo` ends with Spark, which reads the group from its members, checks every line, writes Parquet and reads it back.
`python -m benchmarks.spark_scan` measures rows in Arrow, in Spark and in Parquet, in interleaved rounds.
`spark.read.format("dledger")` and `spark.readStream.format("dledger")` read what is committed, from a member's directory (ours or Java's) or from the members of a group, followers first and through the death of a leader; with `format=rocketmq` the messages of a RocketMQ broker are columns, also from its own commit log. PySpark 4.2 or newer; docs/spark.md.
