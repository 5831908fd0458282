"""Tests of C{dledger/rocketmq/broker/access}."""
