"""Tests of C{dledger/broker/client}."""
