"""Tests of C{dledger/rocketmq/namesrv}."""
