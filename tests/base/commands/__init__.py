"""Tests of dledger.base.commands."""
