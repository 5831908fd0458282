"""The client of a group: append, get and tail, with redirect and retry."""
