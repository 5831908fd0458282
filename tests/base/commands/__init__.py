"""Tests of dledger.rocketmq.answering."""
