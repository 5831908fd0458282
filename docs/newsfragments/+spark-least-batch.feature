Spark streams have `minOffsetsPerTrigger` and `maxTriggerDelay`, as Kafka's source: a stream waits for the first to collect, but not longer than the second.
