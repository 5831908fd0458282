A catalog for Spark SQL, `org.dledger.spark.LogCatalog`: logs are tables by name, in SQL, Spark Connect and JDBC.
