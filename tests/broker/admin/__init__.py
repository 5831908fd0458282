"""Tests of C{dledger/rocketmq/broker/admin}."""
