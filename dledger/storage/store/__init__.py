"""The store of a running member: writes, flushes, reads, repair of holes."""
