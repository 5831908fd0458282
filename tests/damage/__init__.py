"""Damage to a member's files: a reader shows every committed row, or says which file is damaged."""
