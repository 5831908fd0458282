"""Tests of C{dledger/cli}."""
