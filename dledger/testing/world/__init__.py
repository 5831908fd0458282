"""A simulated computer: clock, disk, processes, network streams."""
