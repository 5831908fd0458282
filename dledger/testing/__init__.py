"""A whole group in one process, from one seed: simulated clock, disks, network, faults, and the checks."""
