"""The formats of RocketMQ: records, replication, sends, native broker frames."""
