"""RocketMQ's master/slave replication of the commit log: bytes, acknowledgements, and promises of puts."""
