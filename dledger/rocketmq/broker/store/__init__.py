"""One RocketMQ store: commit log, consume queues, dispatching, recovery."""
