"""Tests of C{dledger/rocketmq/broker/client}."""
