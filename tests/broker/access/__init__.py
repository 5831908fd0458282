"""Tests of C{dledger/broker/access}."""
