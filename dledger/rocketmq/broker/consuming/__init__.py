"""Messages out of the log: pulls, consumer groups, offsets, queue locks."""
