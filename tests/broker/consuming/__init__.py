"""Tests of C{dledger/broker/consuming}."""
