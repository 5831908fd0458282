"""Tests of C{dledger/rocketmq/broker/common}."""
