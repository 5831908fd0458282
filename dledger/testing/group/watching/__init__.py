"""A simulated group and its members."""
