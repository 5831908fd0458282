"""Tests of C{dledger/rocketmq/broker/ha}."""
