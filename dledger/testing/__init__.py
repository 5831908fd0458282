"""A whole group in one process and one seed: simulated clock, disks, network, faults, and the checks."""
