"""Twisted Protocols of the ledger: members and their clients."""
