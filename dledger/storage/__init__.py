"""Files in Java DLedger's format, and the few calls that touch a disk."""
