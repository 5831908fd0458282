"""Invariants of a simulated group, checked after each step."""
