Requests of Java clients are read faster: `code`, which Java writes into each, is a known key now.
