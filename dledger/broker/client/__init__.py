"""Clients of RocketMQ brokers, ours and Java's: put, tail, status."""
