The first entry takes 5 MiB of disk instead of 1.2 GiB: segments keep Java's length but are sparse, and room is reserved a few MiB at a time.
