"""Tests of L{dledger.machine}."""
