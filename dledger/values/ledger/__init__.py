"""Values of the ledger: its options, its members, producers, holes of its files."""
