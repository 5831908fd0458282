"""Verification of a broker's store."""
