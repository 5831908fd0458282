"""Tests of C{dledger/broker/sending}."""
