"""Wire formats: messages as values, and their encodings as bytes. No Twisted, no ledger."""
