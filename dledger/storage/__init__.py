"""Files as Java DLedger has them, and the few calls that touch a disk."""
