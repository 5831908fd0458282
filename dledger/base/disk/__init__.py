"""File calls, segments, two-slot files, expiry: the disk as both products use it."""
