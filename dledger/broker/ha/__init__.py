"""RocketMQ's master/slave replication of the commit log: bytes, acknowledgements, what a put may promise."""
