"""Tests of C{dledger/broker/store}."""
