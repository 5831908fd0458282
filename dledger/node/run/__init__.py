"""What keeps a member running: the driver of the core, flushes, house-keeping."""
