"""The commit log of a broker."""
