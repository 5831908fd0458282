"""The commit log of a master or slave: files, flushes, recovery, repair."""
