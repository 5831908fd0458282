"""Bytes and values: what travels between members, and how it is written. No Twisted, no ledger."""
