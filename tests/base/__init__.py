"""Tests of C{dledger/base}."""
