"""Who leads, and who is a member: elections, transfers, changes of members."""
