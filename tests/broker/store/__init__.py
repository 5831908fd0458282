"""Tests of C{dledger/rocketmq/broker/store}."""
