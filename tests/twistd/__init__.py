"""Tests of C{dledger/twistd}."""
