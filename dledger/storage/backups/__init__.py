"""Backups, archives, and a new group from one of them."""
