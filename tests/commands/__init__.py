"""Tests of C{dledger/commands}."""
