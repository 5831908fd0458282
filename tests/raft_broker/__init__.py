"""Tests of C{dledger/raft_broker}."""
