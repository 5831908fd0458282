"""Mutants: each breaks one guard of the system, and the simulator must notice."""
