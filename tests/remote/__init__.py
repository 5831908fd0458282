# -*- test-case-name: tests.remote -*-
"""Tests of L{dledger.remote}."""
