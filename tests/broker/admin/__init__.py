"""Tests of C{dledger/broker/admin}."""
