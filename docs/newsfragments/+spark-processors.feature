The Spark source divides a log between the processors of the session if `minPartitions` is not given: a log of 64 MiB was one task before.
