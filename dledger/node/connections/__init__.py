"""Connections of a member: those that it accepts, and those to its peers."""
