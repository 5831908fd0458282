"""The index of keys."""
