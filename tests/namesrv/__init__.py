"""Tests of C{dledger/namesrv}."""
