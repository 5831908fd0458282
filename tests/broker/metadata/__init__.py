"""Tests of C{dledger/rocketmq/broker/metadata}."""
