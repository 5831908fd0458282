"""RocketMQ's master/slave replication of the commit log: bytes, acknowledgements, and what a put may promise."""
