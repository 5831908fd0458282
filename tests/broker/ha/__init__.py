"""Tests of C{dledger/broker/ha}."""
