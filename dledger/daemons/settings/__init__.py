"""Options, limits and logs of all daemons."""
