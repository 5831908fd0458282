"""The log of a group: from files, from members, from an archive."""
