"""From a connection to a handler: limits, rights, and the table of requests."""
