"""Tests of C{dledger/rocketmq/broker/sending}."""
