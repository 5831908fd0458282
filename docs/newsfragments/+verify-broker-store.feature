`dledger verify` of a broker's store, ours or RocketMQ's: the commit log, the consume queues against it, the index by key, checkpoint, mark and metadata; each finding says what mends it.
