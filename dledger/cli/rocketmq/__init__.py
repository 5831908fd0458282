"""Commands for brokers."""
