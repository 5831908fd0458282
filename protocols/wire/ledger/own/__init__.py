"""Entries of the log's own making: members, machines, producers, readers, times."""
