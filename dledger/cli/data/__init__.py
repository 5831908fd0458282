"""Commands for data: export, backup, archive."""
