RocketMQ's store, file for file: commit log, consume queues, checkpoint and abort files, opened after RocketMQ and before it, with a mark of our own that says how far the log is good.
