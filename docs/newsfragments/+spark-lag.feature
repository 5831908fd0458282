Spark streams: `dledger.spark.lag` tells how many committed entries and bytes of each group a query has not read yet, from its progress or by a listener.
