"""Commands for a group and its members."""
