"""Tests against Java DLedger and RocketMQ."""
