"""Replication of a broker's log to its slaves, with RocketMQ's HA protocol."""
