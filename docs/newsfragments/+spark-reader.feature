`option("reader", NAME)` of a stream of Spark: the group keeps its place, so expiry deletes nothing that it has not read, and `dledger readers` shows its lag.
