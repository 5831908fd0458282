"""The messages of the ledger and their two formats."""
