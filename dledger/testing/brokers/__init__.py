"""A simulated master with its slaves."""
