"""Twisted Protocols of RocketMQ: commands, native broker frames, replication."""
