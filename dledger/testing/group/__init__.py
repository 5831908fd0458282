"""A simulated group of members."""
