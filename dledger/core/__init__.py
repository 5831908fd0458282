"""The algorithm: inputs in, effects out. No clock, no I/O, no Deferred."""
