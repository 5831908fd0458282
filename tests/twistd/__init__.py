"""Tests of C{dledger/daemons}."""
