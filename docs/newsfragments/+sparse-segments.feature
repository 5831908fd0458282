The first entry takes 16 MiB of disk instead of 1.2 GiB: segments keep Java's length but are sparse, and room is reserved 8 MiB at a time.
