"""Tests of C{dledger/broker/common}."""
