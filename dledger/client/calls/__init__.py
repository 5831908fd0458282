"""Calls that change a group: appends, commands, changes of members."""
