"""The manifest of archives and backups, and the places where they are."""
