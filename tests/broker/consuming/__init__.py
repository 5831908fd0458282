"""Tests of C{dledger/rocketmq/broker/consuming}."""
