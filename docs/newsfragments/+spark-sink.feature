Spark writes into a group: `df.write.format("dledger")` and `df.writeStream.format("dledger")`, each row of a stream once whatever dies; see docs/spark.md.
