"""RocketMQ's storage and metadata: commit log, consume queues, topics, groups and offsets."""
