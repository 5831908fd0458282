"""Verification of a broker's store, without changing it."""
