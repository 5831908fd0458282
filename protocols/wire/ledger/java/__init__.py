"""The messages of the ledger in the JSON frames of Java DLedger."""
