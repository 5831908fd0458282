"""Who may do what at a broker: accounts with keys, and addresses that need none."""
