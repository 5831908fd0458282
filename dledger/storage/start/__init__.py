"""What a member does with its files before it serves: identity, marks, recovery."""
