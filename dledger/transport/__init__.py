"""Connections between members: who is connected, in what format, and nothing of raft."""
