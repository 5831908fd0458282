"""Tests of C{dledger/broker/metadata}."""
