"""The formats of a member's files, and readers of files that nobody writes."""
