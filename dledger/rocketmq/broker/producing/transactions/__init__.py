"""Transactions of producers: half messages that are committed, rolled back, or asked about."""
