"""Connections to members, and who of them leads."""
