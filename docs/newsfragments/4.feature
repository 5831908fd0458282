`dledger export` writes committed entries into Parquet files or lines of JSON, each exactly once over interruptions and restarts; `twistd dledger-export` does so beside a member, segment by segment.
`make demo` ends with Spark, which reads the group from its members, checks every line, writes Parquet and reads it back.
`python -m benchmarks.spark_scan` measures rows in Arrow, in Spark and in Parquet, in interleaved rounds.
