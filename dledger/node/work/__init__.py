"""What a member does all the time: flushes, reads, contacts, checks of its files."""
